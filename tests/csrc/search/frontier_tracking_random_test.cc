// Randomized comparison of whole searches with brute force.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/check.h"
#include "problem/brute_force.h"
#include "problem/random_problem.h"
#include "search/checks.h"
#include "search/frontier_tracking.h"

namespace tensoropt::testing {
namespace {

void expect_equals_brute_force(const Problem& problem,
                               const SearchOptions& options) {
  const std::vector<Cost> expected = brute_force(problem);
  if (expected.empty()) {
    EXPECT_THROW(search(problem, options), UserError);
    return;
  }
  const SearchResult result = search(problem, options);
  EXPECT_EQ(costs(result), expected);
  EXPECT_TRUE(result.exact());
  EXPECT_EQ(result.epsilon(), 0);
  EXPECT_EQ(result.min_memory(), expected.front().memory);
  EXPECT_EQ(result.min_time(), expected.back().time);
  expect_unrolls_exactly(problem, result);
}

TEST(RandomSearch, ExactFrontierEqualsBruteForce) {
  for_random_problems(1, 60, {}, [](const Problem& problem, Dice&) {
    expect_equals_brute_force(problem, single_thread());
  });
}

TEST(RandomSearch, SparseTablesEqualBruteForce) {
  const RandomTables sparse{.max_configs = 5, .density = 35};
  for_random_problems(1000, 40, sparse, [](const Problem& problem, Dice&) {
    expect_equals_brute_force(problem, single_thread());
  });
}

TEST(RandomSearch, ManyTiedCostsEqualBruteForce) {
  const RandomTables tied{.largest_cost = 2};
  for_random_problems(2000, 30, tied, [](const Problem& problem, Dice&) {
    expect_equals_brute_force(problem, single_thread());
  });
}

// Frontiers of hundreds of points: more than there can be zones.
TEST(RandomSearch, LongFrontiersEqualBruteForce) {
  const RandomTables wide{
      .max_configs = 3, .max_choices = 4, .largest_cost = 1000000};
  for_random_problems(3000, 6, wide, [](const Problem& problem, Dice&) {
    expect_equals_brute_force(problem, single_thread());
  });
}

// Doubles hold these sums; floats do not tell many of them apart.
TEST(RandomSearch, CostsThatFloatsRoundEqualBruteForce) {
  const RandomTables large{
      .max_choices = 2, .largest_cost = 4, .cost_step = 1 << 27};
  for_random_problems(3500, 20, large, [](const Problem& problem, Dice&) {
    expect_equals_brute_force(problem, single_thread());
    expect_equals_brute_force(problem, staged());
  });
}

TEST(RandomSearch, FtEliminationEqualsBruteForce) {
  SearchOptions options = single_thread();
  options.algorithm = Algorithm::kElimination;
  for_random_problems(4000, 30, {}, [&](const Problem& problem, Dice&) {
    expect_equals_brute_force(problem, options);
  });
}

TEST(RandomSearch, FrontierDoesNotDependOnBounds) {
  SearchOptions options = single_thread();
  options.use_bounds = false;
  for_random_problems(5000, 30, {}, [&](const Problem& problem, Dice&) {
    expect_equals_brute_force(problem, options);
  });
}

TEST(RandomSearch, StagesEqualBruteForce) {
  for_random_problems(11000, 60, {}, [](const Problem& problem, Dice&) {
    expect_equals_brute_force(problem, staged());
  });
  const RandomTables sparse{.max_configs = 5, .density = 35};
  for_random_problems(12000, 30, sparse, [](const Problem& problem, Dice&) {
    expect_equals_brute_force(problem, staged());
  });
  const RandomTables wide{
      .max_configs = 3, .max_choices = 4, .largest_cost = 1000000};
  for_random_problems(13000, 6, wide, [](const Problem& problem, Dice&) {
    expect_equals_brute_force(problem, staged());
  });
}

// Too large for brute force: many tables, rounds before the last one. The
// oracle is the exact search without any bounds.
TEST(RandomSearch, LargerProblemsAreCoveredWithinTheBound) {
  const RandomTables tables{.max_choices = 1, .largest_cost = 40};
  for (std::uint64_t seed = 14000; seed < 14006; ++seed) {
    Dice dice(seed);
    const Problem problem = random_ladder(dice, tables, 40, 16);
    SearchOptions exact = single_thread();
    exact.use_bounds = false;
    const std::vector<Cost> all = costs(search(problem, exact));
    for (const double epsilon : {0.0, 0.002, 0.02}) {
      for (const std::int64_t many_cells : {1, 1000000000}) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", epsilon " +
                     std::to_string(epsilon) + ", many cells " +
                     std::to_string(many_cells));
        SearchOptions options = single_thread();
        options.epsilon = epsilon;
        options.many_cells = many_cells;
        const SearchResult result = search(problem, options);
        EXPECT_LE(result.epsilon(), epsilon * (1 + 1e-12));
        expect_covers(costs(result), all, result.epsilon());
        expect_unrolls_exactly(problem, result);
      }
    }
  }
}

TEST(RandomSearch, ThinnedFrontierCoversEveryStrategyWithinItsBound) {
  const RandomTables wide{
      .max_configs = 3, .max_choices = 4, .largest_cost = 1000};
  for_random_problems(7000, 25, wide, [](const Problem& problem, Dice& dice) {
    const std::vector<Cost> all = brute_force(problem);
    for (const double epsilon : {0.003, 0.03, 0.3}) {
      SCOPED_TRACE("epsilon " + std::to_string(epsilon));
      SearchOptions options = single_thread();
      options.epsilon = epsilon;
      options.use_bounds = dice.chance(70);
      if (dice.chance(50)) options.many_cells = 1;
      const SearchResult result = search(problem, options);
      EXPECT_LE(result.epsilon(), epsilon * (1 + 1e-12));
      expect_covers(costs(result), all, result.epsilon());
      expect_unrolls_exactly(problem, result);
      EXPECT_EQ(costs(result).front().memory, all.front().memory);
      EXPECT_EQ(costs(result).back().time, all.back().time);
    }
  });
}

TEST(RandomSearch, MemoryLimitCutsTheFrontierAndNothingElse) {
  for_random_problems(8000, 30, {}, [](const Problem& problem, Dice& dice) {
    const std::vector<Cost> all = brute_force(problem);
    const int at = dice.roll(0, static_cast<int>(all.size()) - 1);
    SearchOptions options = single_thread();
    options.use_bounds = dice.chance(80);
    if (dice.chance(50)) options.many_cells = 1;
    options.memory_limit = all[at].memory;  // exactly: still allowed
    const SearchResult fits = search(problem, options);
    const std::vector<Cost> expected(all.begin(), all.begin() + at + 1);
    EXPECT_EQ(costs(fits), expected);
    EXPECT_EQ(fits.min_memory(), all.front().memory);
    EXPECT_EQ(fits.min_time(), all.back().time);
    expect_unrolls_exactly(problem, fits);
    if (all.front().memory == 0) return;
    options.memory_limit = all.front().memory - 1;
    const SearchResult nothing = search(problem, options);
    EXPECT_TRUE(nothing.points().empty());
    EXPECT_EQ(nothing.min_memory(), all.front().memory);
    EXPECT_EQ(nothing.min_time(), all.back().time);
  });
}

TEST(RandomSearch, ThreadsDoNotChangeTheResult) {
  const RandomTables wide{.max_configs = 5, .largest_cost = 10000};
  for_random_problems(9000, 10, wide, [](const Problem& problem, Dice&) {
    SearchOptions options;
    options.epsilon = 0.01;
    options.num_threads = 1;
    const SearchResult one = search(problem, options);
    options.num_threads = 3;
    const SearchResult three = search(problem, options);
    ASSERT_EQ(costs(one), costs(three));
    for (int i = 0; i < static_cast<int>(one.points().size()); ++i) {
      EXPECT_EQ(one.unroll(i).config, three.unroll(i).config);
      EXPECT_EQ(one.unroll(i).node_tag, three.unroll(i).node_tag);
      EXPECT_EQ(one.unroll(i).edge_tag, three.unroll(i).edge_tag);
    }
  });
}

TEST(RandomSearch, HeuristicsGiveStrategiesThatExistAndSaySo) {
  for_random_problems(10000, 30, {}, [](const Problem& problem, Dice& dice) {
    SearchOptions options = single_thread();
    options.max_conditioning_work = 0;
    options.many_cells = dice.chance(50) ? 1 : 1000000;
    const SearchResult result = search(problem, options);
    const std::vector<Cost> all = brute_force(problem);
    expect_unrolls_exactly(problem, result);
    expect_covers(all, costs(result), 0);  // none is better than the optimum
    if (result.exact()) {
      EXPECT_EQ(costs(result), all);
    } else {
      EXPECT_EQ(result.heuristics_used().size(), 3u);
      EXPECT_TRUE(std::isinf(result.epsilon()));
    }
  });
}

}  // namespace
}  // namespace tensoropt::testing
