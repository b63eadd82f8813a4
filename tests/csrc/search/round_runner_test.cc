// Rounds against all strategies, after a probe that says little.

#include "search/round_runner.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "problem/checks.h"
#include "search/checks.h"
#include "search/scheduled.h"

namespace tensoropt::testing {
namespace {

// All that a runner needs, solved for the ends of the frontier alone.
struct Probed {
  explicit Probed(const Scheduled& scheduled)
      : graph(scheduled.pool, scheduled.root(), scheduled.tables),
        probe(graph, scheduled.schedule, workers, memory, Depth::kWhole),
        evaluator(scheduled.pool, scheduled.root(), scheduled.tables, workers) {
    probe.solve_between(0, {}, 2);
    probe.solve_ends();
  }

  Workers workers{1};
  PassMemory memory;
  const MinPlusGraph graph;
  WeightedProbe probe;
  ProductEvaluator evaluator;
};

std::vector<Cost> costs_of(const std::vector<KnownStrategy>& strategies) {
  std::vector<Cost> costs;
  for (const auto& s : strategies) {
    costs.push_back({s.cost.memory, s.cost.time});
  }
  return costs;
}

TEST(RoundRunner, FindsAllBetweenTheEnds) {
  const RandomTables how{.max_configs = 3, .density = 80};
  int more = 0;
  for_random_problems(1, 8, how, [&](const Problem& problem, Dice& dice) {
    const Scheduled scheduled(problem, dice);
    Probed probed(scheduled);
    RoundRunner runner(probed.graph, scheduled.schedule,
                       {.workers = probed.workers}, {}, probed.probe,
                       probed.evaluator);
    runner.run();
    EXPECT_EQ(costs_of(runner.known()), brute_force(problem));
    EXPECT_EQ(runner.error(), 0);
    more += runner.known().size() > probed.probe.strategies().size() ? 1 : 0;
  });
  EXPECT_GT(more, 20);
}

// So large that the first rounds look at a part only.
TEST(RoundRunner, SeveralRoundsFindWhatOneProductFinds) {
  const RandomTables how{.max_choices = 2, .largest_cost = 1000};
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const Scheduled scheduled(random_ladder(dice, how, 9, 24));
    Probed probed(scheduled);
    probed.evaluator.run(nullptr, {});
    const auto all = costs_of(probed.evaluator.strategies(scheduled.schedule));
    RoundRunner runner(probed.graph, scheduled.schedule,
                       {.workers = probed.workers}, {}, probed.probe,
                       probed.evaluator);
    runner.run();
    EXPECT_GT(runner.num_rounds(), 1);
    EXPECT_EQ(costs_of(runner.known()), all);
  }
}

TEST(RoundRunner, ThinsWithinTheErrorThatItTells) {
  const RandomTables how{.max_configs = 3, .cost_step = 100};
  bool thinned = false;
  for_random_problems(30, 6, how, [&](const Problem& problem, Dice& dice) {
    const Scheduled scheduled(problem, dice);
    Probed probed(scheduled);
    RoundRunner runner(
        probed.graph, scheduled.schedule,
        {.known_epsilon = 0.05, .thin_epsilon = 0.2, .workers = probed.workers},
        {}, probed.probe, probed.evaluator);
    runner.run();
    EXPECT_LE(runner.error(), 0.2 + 1e-12);
    thinned = thinned || runner.error() > 0;
    expect_covers(costs_of(runner.known()), brute_force(problem),
                  1.05 * (1 + runner.error()) - 1);
  });
  EXPECT_TRUE(thinned);
}

TEST(RoundRunner, WhatIsGivenNeedNotBeFoundAgain) {
  const RandomTables how{.max_configs = 3, .density = 80};
  for_random_problems(60, 6, how, [&](const Problem& problem, Dice& dice) {
    const Scheduled scheduled(problem, dice);
    const auto all = brute_force(problem);
    std::vector<Point> given;
    for (const Cost& cost : all) {
      if (dice.chance(60)) given.push_back({cost.memory, cost.time});
    }
    Probed probed(scheduled);
    RoundRunner runner(probed.graph, scheduled.schedule,
                       {.workers = probed.workers}, given, probed.probe,
                       probed.evaluator);
    runner.run();
    auto together = costs_of(runner.known());
    for (const Point& p : given) together.push_back({p.memory, p.time});
    EXPECT_EQ(pareto(std::move(together)), all);
  });
}

}  // namespace
}  // namespace tensoropt::testing
