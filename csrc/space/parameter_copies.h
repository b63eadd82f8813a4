// Parameters in a narrower dtype: mixed precision keeps them as they are and
// computes with copies, which a cast makes anew in every step.
//
//   const auto copies = find_parameter_copies(graph, rules);
//   copies[value]   // the dtype before the cast, if the value is one
//
// What is moved between devices is the copy, so that a gather takes the bytes
// of the narrow dtype; gradients are summed in either dtype (ReduceDType).
#pragma once

#include <optional>
#include <vector>

#include "ir/graph.h"
#include "rules/rule.h"

namespace tensoropt {

// By value: what a narrowing cast makes of parameters, or of what is computed
// of nothing but parameters and constants; and views of that.
IndexedVector<ValueId, std::optional<DType>> find_parameter_copies(
    const Graph& graph, const RulesByNode& rules);

}  // namespace tensoropt
