// Reshards of parameters and of their gradients that run while the rank
// computes.
//
//   auto queue = c10::make_intrusive<ParameterQueue>(4, 1 << 22);
//   queue->begin_value(0, Program(steps, groups), x);       // ahead of its use
//   queue->begin_values({1, 2}, GatherBucket(parts, dims, group));
//   at::Tensor y = queue->take_value(0);                    // where it is used
//   queue->begin_gradient(0, Program(back, groups), grad);  // in backward
//   grad = queue->take_gradient(0);                         // at its end
//
// Slots number the parameters. Gradients that can share a collective are put
// into buckets, which begin when they have so many bytes, or when one of their
// gradients is taken. At most so many buckets and gradients of programs of
// their own are under way: the next one waits for the oldest. Programs of
// several collectives go on by one when another gradient begins. So what is in
// memory, and the order of collectives, depend on the graph alone, which is
// alike on all ranks.
//
// Operators name a queue by a number, as long as somebody has it: an object
// among their arguments takes longer to pass than all they do.
#pragma once

#include <torch/custom_class.h>

#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/gather_bucket.h"
#include "runtime/gradient_bucket.h"
#include "runtime/program.h"

namespace tensoropt {

class ParameterQueue : public torch::CustomClassHolder {
 public:
  // Throws c10::ValueError below 1 under way, or 0 bytes.
  ParameterQueue(std::int64_t most_under_way, std::int64_t bucket_bytes,
                 std::int64_t shard_bytes);

  using Pointer = c10::intrusive_ptr<ParameterQueue>;
  // Which no other queue of this process has.
  static std::int64_t number_of(const Pointer& queue);
  // Throws c10::ValueError if there is none.
  static Pointer find(std::int64_t number);

  // Replaces what was begun in the slot.
  void begin_value(std::int64_t slot, Program program, at::Tensor x);
  void begin_values(std::vector<std::int64_t> slots, GatherBucket bucket);
  // One that is there already.
  void put_value(std::int64_t slot, at::Tensor value);
  // Whether something was begun since a value was taken.
  bool has_value(std::int64_t slot) const { return values_.contains(slot); }
  // Waits. Undefined if nothing was begun since it was taken.
  at::Tensor take_value(std::int64_t slot);

  // Inside a pass of backward, whose gradients are apart from those of others.
  void begin_gradient(std::int64_t slot, Program program, at::Tensor gradient);
  // Whether the pass has begun something since a gradient was taken.
  bool has_gradient(std::int64_t slot);
  // Waits. Undefined if the pass has begun nothing since it was taken.
  at::Tensor take_gradient(std::int64_t slot);

  void release_resources() override;  // nobody has it any more

 private:
  struct Alone {
    std::int64_t slot;
    Execution execution;
  };
  using UnderWay = std::variant<Alone, GradientBucket::Reduction>;

  struct Pass {
    // In the order in which they got their first gradient: names of groups
    // differ between ranks.
    std::vector<std::pair<GradientBucket::Key, GradientBucket>> buckets;
    std::deque<UnderWay> under_way;
    std::unordered_map<std::int64_t, at::Tensor> ready;
    std::unordered_set<std::int64_t> begun;  // and not taken

    GradientBucket& bucket(const GradientBucket::Key& key);
    void finish_oldest();
  };

  Pass& this_pass();
  void make_room(Pass& pass) const;
  void begin_bucket(Pass& pass, GradientBucket& bucket) const;

  // Values that are gathered together, until the first of them is taken.
  struct Gathering {
    std::vector<std::int64_t> slots;
    GatherBucket bucket;
  };
  using Value = std::variant<Execution, std::shared_ptr<Gathering>, at::Tensor>;

  void finish(const std::shared_ptr<Gathering>& gathering);

  std::int64_t number_ = 0;  // 0: nobody asked
  std::unordered_map<std::int64_t, Value> values_;
  std::size_t most_under_way_;
  std::int64_t bucket_bytes_;
  std::int64_t shard_bytes_;
  std::map<int, Pass> passes_;  // as autograd numbers them
};

}  // namespace tensoropt
