#include "problem/random_strategy.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "common/check.h"
#include "problem/checks.h"
#include "problem/random_problem.h"

namespace tensoropt::testing {
namespace {

std::shared_ptr<const NodeTable> free_node(int configs) {
  return std::make_shared<NodeTable>(
      std::vector<std::vector<Choice>>(configs, {Choice{1, 1, 0}}));
}

TEST(RandomStrategy, IsFeasibleAndAddsUpOnSparseTables) {
  const RandomTables sparse{.max_configs = 5, .density = 35};
  int feasible = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Dice dice(seed);
    for (const Shape& shape : all_shapes(dice)) {
      SCOPED_TRACE(shape.name + ", seed " + std::to_string(seed));
      const Problem problem =
          random_problem(dice, sparse, shape.num_nodes, shape.pairs);
      if (brute_force(problem).empty()) {
        EXPECT_THROW(random_strategy(problem, seed), UserError);
        continue;
      }
      ++feasible;
      const Strategy strategy = random_strategy(problem, seed);
      EXPECT_EQ(recompute(problem, strategy),
                (Cost{strategy.memory, strategy.time}));
    }
  }
  EXPECT_GT(feasible, 100);
}

// A chain in which every node must copy the config of the one before.
TEST(RandomStrategy, FollowsSparseEdgesThroughLongChains) {
  const int length = 200;
  EdgeTable::Builder builder(7, 7);
  for (int c = 0; c < 7; ++c) builder.add(c, c, {});
  const auto follow = std::move(builder).build();
  Problem problem;
  for (int n = 0; n < length; ++n) {
    problem.nodes.push_back(free_node(7));
    if (n > 0) problem.edges.push_back({n - 1, n, follow});
  }
  std::set<int> seen;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Strategy strategy = random_strategy(problem, seed);
    for (const int config : strategy.config) {
      EXPECT_EQ(config, strategy.config.front()) << "seed " << seed;
    }
    seen.insert(strategy.config.front());
  }
  EXPECT_EQ(seen.size(), 7u);
}

TEST(RandomStrategy, TheSeedDecides) {
  Dice dice(1);
  const Problem problem = random_problem(dice, {.max_configs = 6}, 7, chain(7));
  EXPECT_EQ(random_strategy(problem, 5).config,
            random_strategy(problem, 5).config);
  std::set<std::vector<int>> seen;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    seen.insert(random_strategy(problem, seed).config);
  }
  EXPECT_GT(seen.size(), 20u);
}

TEST(RandomStrategy, IsFasterTheMoreDecisionsAreGreedy) {
  double random_s = 0, mixed_s = 0, greedy_s = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Dice dice(seed);
    const Problem problem =
        random_problem(dice, {.max_configs = 6}, 9, series_parallel(dice, 9));
    for (const double greed : {0.0, 0.5, 1.0}) {
      const Strategy strategy = random_strategy(problem, seed, greed);
      EXPECT_EQ(recompute(problem, strategy),
                (Cost{strategy.memory, strategy.time}));
      (greed == 0   ? random_s
       : greed == 1 ? greedy_s
                    : mixed_s) += strategy.time;
    }
  }
  EXPECT_LT(greedy_s, 0.9 * mixed_s);
  EXPECT_LT(mixed_s, 0.9 * random_s);
}

// Without edges the fastest decisions are those of the fastest strategy.
TEST(RandomStrategy, AllGreedyDecisionsAreTheFastest) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const Problem problem = random_problem(dice, {.max_configs = 6}, 5, {});
    EXPECT_EQ(random_strategy(problem, seed, 1).time,
              brute_force(problem).back().time);
  }
}

TEST(RandomStrategy, RefusesAGreedThatIsNoShare) {
  Dice dice(1);
  const Problem problem = random_problem(dice, {}, 3, chain(3));
  EXPECT_THROW(random_strategy(problem, 1, -0.1), UserError);
  EXPECT_THROW(random_strategy(problem, 1, 1.1), UserError);
}

}  // namespace
}  // namespace tensoropt::testing
