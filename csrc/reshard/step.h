// The moves that a reshard is made of. Each acts on a set of mesh axes:
//
//   all-gather      on the least significant axes of the dim
//   reduce-scatter  on axes below all that already shard the dim
//   all-to-all      on axes that are the least significant on both dims
//   slice           on axes below all that already shard the dim
#pragma once

#include <vector>

#include "common/step_code.h"
#include "sharding/layout.h"

namespace tensoropt {

struct Step {
  StepKind kind = StepKind::kSlice;
  AxisSet axes = 0;
  int dim = -1;     // the dim that is gathered, scattered, sliced or split off
  int to_dim = -1;  // the dim that all-to-all splits; -1 for the others

  bool operator==(const Step&) const = default;
};

// A reshard: the steps in order. Empty when the layouts are equal.
using Steps = std::vector<Step>;

}  // namespace tensoropt
