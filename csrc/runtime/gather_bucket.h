// Parameters that are gathered together: one collective in place of many small
// ones, whose time is mostly that of their start.
//
//   GatherBucket bucket(parts, /*dims=*/{0, 1}, group);   // starts
//   std::vector<at::Tensor> wholes = bucket.finish();
//
// Each is gathered over the ranks of one group along a dim of its own. Parts
// are copied into one tensor, 64 bytes apart from each other or a multiple of
// it; wholes have memory of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/collectives.h"

namespace tensoropt {

class GatherBucket {
 public:
  // Throws c10::ValueError unless there are parts, of one dtype, with elements
  // that are real numbers, and a dim for each.
  GatherBucket(const std::vector<at::Tensor>& parts, at::IntArrayRef dims,
               const std::string& group);

  // Waits. Once.
  std::vector<at::Tensor> finish();

 private:
  struct Part {
    std::vector<std::int64_t> shape;
    std::int64_t dim;
    std::int64_t offset;
  };
  static Started start(const std::vector<at::Tensor>& parts,
                       const std::vector<Part>& places,
                       const std::string& group);

  std::vector<Part> parts_;
  Started started_;
};

}  // namespace tensoropt
