// The moves that a reshard is made of. Each acts on a set of mesh axes and is
// one collective over the groups of these axes, or a local operation.
//
//   all-gather      S(dim) -> R      on the least significant axes of dim
//   reduce-scatter  P      -> S(dim) on axes below all that already shard dim
//   all-reduce      P      -> R
//   all-to-all      S(dim) -> S(to)  least significant on both dims
//   slice           R      -> S(dim) local, below all that already shard dim
//   mask            R      -> P      local: zeros on all but the first rank
#pragma once

#include <vector>

#include "sharding/layout.h"

namespace tensoropt {

enum class StepKind : int {
  kAllGather = 0,
  kReduceScatter = 1,
  kAllReduce = 2,
  kAllToAll = 3,
  kSlice = 4,
  kMask = 5,
};

struct Step {
  StepKind kind = StepKind::kSlice;
  AxisSet axes = 0;
  int dim = -1;     // the dim that is gathered, scattered, sliced or split off
  int to_dim = -1;  // the dim that all-to-all splits; -1 for the others

  bool operator==(const Step&) const = default;
};

// A reshard: the steps in order. Empty when the layouts are equal.
using Program = std::vector<Step>;

}  // namespace tensoropt
