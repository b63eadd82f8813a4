// Where it can pay to leave a sum pending (Partial) for longer than needed.
//
// A pending sum costs the same to finish before or after an operator that
// passes it on unchanged. Leaving it pending pays only if that operator adds
// several pending sums, or makes the tensor smaller, or a later one does. The
// same holds for gradients of a value with several consumers: it pays only if
// at least two of them can leave theirs pending. Configs that cannot pay are
// left out of the space.
#pragma once

#include <vector>

#include "rules/config.h"
#include "space/exclusions.h"

namespace tensoropt {

// Removes from `rules` (by node) the linear sets that cannot pay, and adds them
// to `left_out`. O(nodes + operands).
void remove_idle_linear_sets(const Graph& graph, RulesByNode& rules,
                             Exclusions& left_out);

// Whether at least two consumers of the value can give a Partial gradient.
bool shares_pending_gradients(const Graph& graph, const RulesByNode& rules,
                              const Value& value);

}  // namespace tensoropt
