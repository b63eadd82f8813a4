// What several tests ask of a search result.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "problem/checks.h"
#include "search/frontier_tracking.h"

namespace tensoropt::testing {

inline std::vector<Cost> costs(const SearchResult& result) {
  std::vector<Cost> costs;
  for (const Point& p : result.points()) costs.push_back({p.memory, p.time});
  return costs;
}

inline void expect_unrolls_exactly(const Problem& problem,
                                   const SearchResult& result) {
  for (int i = 0; i < static_cast<int>(result.points().size()); ++i) {
    const Strategy strategy = result.unroll(i);
    const Cost cost = recompute(problem, strategy);
    const Point point = result.points()[i];
    EXPECT_EQ(cost, (Cost{point.memory, point.time})) << "point " << i;
    EXPECT_EQ(cost, (Cost{strategy.memory, strategy.time})) << "point " << i;
  }
}

}  // namespace tensoropt::testing
