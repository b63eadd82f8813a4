// The memory limits of a search, of those that it is asked for.
#pragma once

#include <cmath>

#include "search/bounds/search_zones.h"
#include "search/frontier_tracking.h"

namespace tensoropt {

inline MemoryLimits memory_limits(const SearchOptions& options) {
  MemoryLimits limits{.most = options.memory_limit,
                      .only_picks = options.only_picks};
  for (const double limit : options.pick_limits) {
    if (limit < limits.most) limits.picks.push_back(limit);
  }
  if (std::isfinite(limits.most)) limits.picks.push_back(limits.most);
  return limits;
}

}  // namespace tensoropt
