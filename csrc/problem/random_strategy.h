// Strategies drawn at random.
#pragma once

#include <cstdint>

#include "problem/problem.h"
#include "problem/strategy.h"

namespace tensoropt {

// A feasible strategy drawn at random: nodes in random order take a random one
// of the configs left to them, and what follows from it is propagated; choices
// are uniform. Such strategies of a large problem are much alike. `greed`, from
// 0 to 1, is the share of decisions that take the fastest given those before,
// instead of a random one. The same seed gives the same strategy on every
// machine. Throws UserError, naming a node, if there is no strategy (or none
// was found within a bounded number of backtracks).
Strategy random_strategy(const Problem& problem, std::uint64_t seed,
                         double greed = 0);

}  // namespace tensoropt
