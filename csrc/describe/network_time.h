// How much of a strategy's time is spent on the network: all reshards, with
// their local copies, and the collectives that operators run by themselves. The
// rest of its time is computing.
//
//   const double compute_s = strategy.time - network_time_s(space, strategy,
//   shape);
//
// O(nodes + edges). Throws UserError if the strategy is not one of the space.
#pragma once

#include "cost/parts.h"
#include "problem/strategy.h"
#include "space/space.h"

namespace tensoropt {

double network_time_s(const StrategySpace& space, const Strategy& strategy,
                      const StepShape& shape = {});

// The rest: operators and the updates of parameters. Together they are the time
// of the strategy, also of one that was found under other costs.
double compute_time_s(const StrategySpace& space, const Strategy& strategy,
                      const StepShape& shape = {});

}  // namespace tensoropt
