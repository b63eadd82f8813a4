// Why operators and parameters have the configs that they have, and what it
// costs where they cannot be split over all devices.
//
//   for (const NodeExplanation& node : explain(space)) {
//     space.nodes()[node.space_node].name;
//     node.uneven_splits;              // sizes that do not divide
//     node.time_s - node.even_time_s;  // what a step would gain
//   }
//
// Reports what was recorded where configs were left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "space/space.h"

namespace tensoropt {

// A factor, or a dim of a parameter ("dim 0"), that is not cut into so many
// parts: they would differ and have to be equal, or some would be empty.
struct UnevenSplit {
  std::string factor;
  std::int64_t size = 1;
  std::int64_t parts = 1;
  bool equal = false;  // they have to be
};

struct NodeExplanation {
  SpaceNodeId space_node;
  std::string rule;  // of an operator, e.g. "b k, n k -> b n"
  std::size_t num_configs = 0;
  // Without max_configs, and without a canonical order of alike axes; none if
  // there are too many to count.
  std::optional<std::size_t> num_without_budget;
  std::optional<std::size_t> num_in_any_order;
  std::optional<int> max_runs;  // see ConfigList
  std::vector<UnevenSplit> uneven_splits;
  Exclusions exclusions;
  double flops = 0;  // of the whole operator, forward and backward
  // Into how many parts its work, or the parameter, can be split at most.
  std::int64_t parts = 1;
  // Of the config with the least of each, forward and backward; memory is what
  // is kept of its operands and outputs, or of parameter, gradient and state.
  double time_s = 0;
  double memory_bytes = 0;
  // The same if the whole were split evenly over all devices.
  double even_time_s = 0;
  double even_memory_bytes = 0;
};

// Operators and parameters in execution order; also values with several
// consumers if max_configs left some of their configs out. O(configs).
std::vector<NodeExplanation> explain(const StrategySpace& space,
                                     const StepShape& shape = {});

}  // namespace tensoropt
