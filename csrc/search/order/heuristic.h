// Heuristic elimination: fixes the config of a hub so that the rest of the
// problem can be searched exactly. Not exact: see SearchResult::exact().
#pragma once

#include <vector>

#include "problem/problem.h"
#include "search/order/schedule.h"

namespace tensoropt {

// Fixes the config with the least weighted sum of memory and time, each
// measured by the least that any config of the node needs.
struct Heuristic {
  double memory_weight = 0.5;  // in [0, 1]; that of time is the rest

  friend bool operator==(const Heuristic&, const Heuristic&) = default;
};

// Fixes nodes, the one with the most neighbours first, until the conditioning
// that is left is within the budget. A config is judged by its best choices at
// the node and its edges. Returns -1 for nodes that stay free. `likely` is a
// guess of how many have to be fixed: the closer, the fewer schedules are made.
std::vector<int> fix_hubs(const Problem& problem, const Heuristic& heuristic,
                          const ScheduleOptions& options,
                          const ConditioningBudget& budget, int likely);

}  // namespace tensoropt
