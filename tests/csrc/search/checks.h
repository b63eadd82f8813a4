// What several tests of searches do: draw problems, search, check the result.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "problem/checks.h"
#include "problem/random_problem.h"
#include "search/frontier_tracking.h"

namespace tensoropt::testing {

inline SearchOptions single_thread() {
  SearchOptions options;
  options.num_threads = 1;
  return options;
}

// Every problem in stages, however small.
inline SearchOptions staged() {
  SearchOptions options = single_thread();
  options.many_cells = 1;
  return options;
}

// Draws `count` problems for every shape and calls check(problem, dice).
template <typename Check>
void for_random_problems(std::uint64_t first_seed, int count,
                         const RandomTables& how, Check&& check) {
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    Dice dice(seed);
    for (const Shape& shape : all_shapes(dice)) {
      SCOPED_TRACE(shape.name + ", seed " + std::to_string(seed));
      const Problem problem =
          random_problem(dice, how, shape.num_nodes, shape.pairs);
      check(problem, dice);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

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
