// How the work of an operator is split, in common words: by the batch (data
// parallelism), by dims of weights (tensor parallelism), or by other dims, such
// as the positions of a sequence.
//
//   WorkSplits splits(space);
//   splits.of(node, config)[axis] == WorkSplit::kBatch;
#pragma once

#include <string_view>
#include <vector>

#include "describe/named_dims.h"
#include "space/space.h"

namespace tensoropt {

enum class WorkSplit {
  kNone,      // all devices of the axis do the same
  kBatch,     // dim 0 of the inputs
  kFeatures,  // a dim of the operator's weight, or one that weights have
  kPositions,
};

std::string_view to_string(WorkSplit split);

class WorkSplits {
 public:
  // O(all dims of all operators).
  explicit WorkSplits(const StrategySpace& space);

  // By mesh axis, for an operator in one of its configs.
  std::vector<WorkSplit> of(const SpaceNode& op,
                            const SpaceConfig& config) const;

 private:
  WorkSplit by_factor(const Node& node, int factor,
                      const std::vector<bool>& in_weight) const;

  const StrategySpace& space_;
  NamedDims dims_;
  // By class of dims: some operator with a weight has it beside the weight, as
  // linears have positions.
  std::vector<bool> beside_weight_;
};

}  // namespace tensoropt
