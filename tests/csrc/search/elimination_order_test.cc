// Frontiers do not depend on the order in which nodes are eliminated, bounded
// or not.

#include <gtest/gtest.h>

#include <vector>

#include "common/workers.h"
#include "problem/brute_force.h"
#include "search/bounds/min_plus.h"
#include "search/bounds/weighted_probe.h"
#include "search/checks.h"
#include "search/products/product_evaluator.h"
#include "search/round_runner.h"
#include "search/scheduled.h"

namespace tensoropt::testing {
namespace {

// The costs, each of which must be what the strategy's own choices add up to.
std::vector<Cost> checked_costs(const Scheduled& scheduled,
                                const std::vector<KnownStrategy>& strategies) {
  std::vector<Cost> costs;
  for (const KnownStrategy& strategy : strategies) {
    Cost sum;
    for (std::size_t t = 0; t < scheduled.schedule.terms.size(); ++t) {
      const Term& term = scheduled.schedule.terms[t];
      if (term.slot < 0) continue;
      const Frontier& points = scheduled.tables[term.expression].points;
      sum.memory += points.memory[strategy.points[t]];
      sum.time += points.time[strategy.points[t]];
    }
    EXPECT_EQ(sum, (Cost{strategy.cost.memory, strategy.cost.time}));
    costs.push_back(sum);
  }
  return costs;
}

TEST(EliminationOrder, AnyOrderGivesTheFrontierOfBruteForce) {
  for_random_problems(6000, 30, {}, [](const Problem& problem, Dice& dice) {
    const Scheduled scheduled(problem, dice);
    Workers workers(1);
    ProductEvaluator evaluator(scheduled.pool, scheduled.root(),
                               scheduled.tables, workers);
    evaluator.run(nullptr, {});
    const std::vector<Cost> expected = brute_force(problem);
    EXPECT_EQ(
        checked_costs(scheduled, evaluator.strategies(scheduled.schedule)),
        expected);

    const MinPlusGraph graph(scheduled.pool, scheduled.root(),
                             scheduled.tables);
    PassMemory memory;
    WeightedProbe probe(graph, scheduled.schedule, workers, memory,
                        Depth::kWhole);
    probe.solve_between(0, {.most = 1e9}, 9);
    probe.solve_ends();
    RoundRunner rounds(graph, scheduled.schedule, {.workers = workers}, {},
                       probe, evaluator);
    rounds.run();
    EXPECT_EQ(checked_costs(scheduled, rounds.known()), expected);
  });
}

}  // namespace
}  // namespace tensoropt::testing
