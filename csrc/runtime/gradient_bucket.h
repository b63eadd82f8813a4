// Gradients that are reduced together: one collective in place of many small
// ones, whose time is mostly that of their start.
//
//   if (auto key = GradientBucket::key_of(program, gradient)) {
//     GradientBucket& bucket = buckets[*key];
//     bucket.add(slot, std::move(program), std::move(gradient));
//     if (bucket.num_bytes() >= kBucketBytes) started = bucket.start();
//   }
//   for (auto& [slot, reduced] : started.finish()) ...
//
// Programs of one all-reduce or one reduce-scatter can share a bucket if their
// groups and dtypes are equal. What is reduced lies in one tensor, of which the
// results are views, 64 bytes apart from each other or a multiple of it. Where
// parts differ in size, a bucket has the bytes of the rank that has most, so
// that all ranks start it at the same gradient.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/program.h"

namespace tensoropt {

class GradientBucket {
 public:
  using Slot = std::int64_t;
  using Key = std::tuple<StepKind, std::string, at::ScalarType>;
  using Reduced = std::vector<std::pair<Slot, at::Tensor>>;

  // A bucket under way.
  class Reduction {
   public:
    // Waits. Once.
    Reduced finish();

   private:
    friend class GradientBucket;
    struct Part {
      Slot slot;
      std::vector<std::int64_t> sent;   // the longest part's shape
      std::vector<std::int64_t> shape;  // of the result
      std::int64_t offset;
    };
    Reduction(Started started, std::vector<Part> parts)
        : started_(std::move(started)), parts_(std::move(parts)) {}

    Started started_;
    std::vector<Part> parts_;
  };

  // Nothing if the program has to run by itself.
  static std::optional<Key> key_of(const Program& program,
                                   const at::Tensor& gradient);

  // Throws c10::ValueError if a size is not the one that the step cuts.
  void add(Slot slot, Program program, at::Tensor gradient);
  std::int64_t num_bytes() const { return num_bytes_; }
  bool empty() const { return members_.empty(); }

  // Copies the gradients into one tensor, lets go of them, and starts.
  // Requires some.
  Reduction start();

 private:
  struct Member {
    Slot slot;
    Program program;
    at::Tensor gradient;
    std::vector<std::int64_t> shape;  // of the result
  };

  bool have_rows() const;
  at::Tensor joined(const std::vector<Reduction::Part>& parts,
                    std::int64_t rows, std::int64_t size) const;
  at::Tensor copied(const std::vector<Reduction::Part>& parts,
                    std::int64_t rows, std::int64_t size);

  std::vector<Member> members_;
  std::int64_t num_bytes_ = 0;
};

}  // namespace tensoropt
