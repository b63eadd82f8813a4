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

// Fixes nodes, the one with the most neighbours first, until the conditioning
// that is left costs at most `max_conditioning_work` (see Schedule). A config
// is judged by its best choices at the node and its edges. Returns -1 for
// nodes that stay free.
std::vector<int> fix_hubs(const Problem& problem, Heuristic heuristic,
                          const ScheduleOptions& options,
                          double max_conditioning_work);

}  // namespace tensoropt
