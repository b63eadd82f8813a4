// Units: neighbouring entries of a dim that are kept together.
//
// A reshape makes rows [7, 1024] to [7168]: cut into 4 parts the first dim
// gives 2, 2, 2 and 1 rows, the second 1792 entries each, which are no blocks
// of rows. So the second one is cut in units of 1024, as the first is: then all
// operators in between are split alike, without a reshard. That is how every
// dim class is cut whose numbers of units the devices do not divide and of
// which each of them gets some.
//
// Stored tensors have units of one entry, since a DTensor knows no others, and
// so have dims that are split together with a dim of theirs.
#pragma once

#include <functional>
#include <vector>

#include "rules/rule.h"

namespace tensoropt {

// Sets the units of the graph's values; the rules are those without.
// `keeps_single` tells sources that have none. Returns the nodes whose rules
// change.
std::vector<NodeId> set_units(
    Graph& graph, const RulesByNode& rules, const Mesh& mesh,
    const std::function<bool(const Node&)>& keeps_single);

}  // namespace tensoropt
