// Heuristic elimination: fixes the config of a hub so that the rest of the
// problem can be searched exactly. Not exact: see SearchResult::exact().
#pragma once

#include <vector>

#include "search/problem.h"
#include "search/schedule.h"

namespace tensoropt {

enum class Heuristic {
  kLeastMemory,  // the config with the least memory, then time
  kLeastTime,    // the config with the least time, then memory
  kBalanced,     // the least product of both, each measured by its least
};

// What exact conditioning may cost, in the estimates of a schedule.
struct ConditioningBudget {
  double max_work = 0;
  double max_cells = 0;
  bool allows(const Schedule& schedule) const {
    return schedule.conditioning_work == 0 ||
           (schedule.conditioning_work <= max_work &&
            schedule.cells <= max_cells);
  }
};

// Fixes nodes, the one with the most neighbours first, until the conditioning
// that is left is within the budget. A config is judged by its best choices at
// the node and its edges. Returns -1 for nodes that stay free.
std::vector<int> fix_hubs(const Problem& problem, Heuristic heuristic,
                          const ScheduleOptions& options,
                          const ConditioningBudget& budget);

}  // namespace tensoropt
