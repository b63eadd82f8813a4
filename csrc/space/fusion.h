// What compilers make one kernel of: operators that are loops over elements,
// with reductions along them, one behind the other and nothing else between.
// Inside of a kernel nothing is written to memory and read again.
//
//   fuse(graph, rules);   // rules of what is fused move and launch less
#pragma once

#include "ir/graph.h"
#include "rules/rule.h"

namespace tensoropt {

// Of operators whose rules say `fuses`: an operand that comes from one of the
// same kernel is not read, an output that goes to such alone is not written,
// and those that are not the first of their kernel are not launched.
void fuse(const Graph& graph, RulesByNode& rules);

}  // namespace tensoropt
