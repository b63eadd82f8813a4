// Frontiers do not depend on the order in which nodes are eliminated, bounded
// or not.

#include <gtest/gtest.h>

#include <vector>

#include "common/workers.h"
#include "problem/brute_force.h"
#include "search/bounds/min_plus.h"
#include "search/bounds/weighted_probe.h"
#include "search/checks.h"
#include "search/planned.h"
#include "search/products/product_evaluator.h"
#include "search/round_runner.h"

namespace tensoropt::testing {
namespace {

// The costs, each of which must be what the strategy's own choices add up to.
std::vector<Cost> checked_costs(const Planned& planned,
                                const std::vector<KnownStrategy>& strategies) {
  std::vector<Cost> costs;
  for (const KnownStrategy& strategy : strategies) {
    Cost sum;
    for (std::size_t t = 0; t < planned.schedule.terms.size(); ++t) {
      const Term& term = planned.schedule.terms[t];
      if (term.slot < 0) continue;
      const Frontier& points = planned.tables[term.expression].points;
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
    const Planned planned(problem, dice);
    Workers workers(1);
    ProductEvaluator evaluator(planned.pool, planned.root(), planned.tables,
                               workers);
    evaluator.run(nullptr, {});
    const std::vector<Cost> expected = brute_force(problem);
    EXPECT_EQ(checked_costs(planned, evaluator.strategies(planned.schedule)),
              expected);

    const MinPlusGraph graph(planned.pool, planned.root(), planned.tables);
    PassMemory memory;
    WeightedProbe probe(graph, planned.schedule, workers, memory,
                        Depth::kWhole);
    probe.ask_between(0, 1e9, 9);
    probe.ask_about_ends();
    RoundRunner rounds(graph, planned.schedule, {.workers = workers}, {}, probe,
                       evaluator);
    rounds.run();
    EXPECT_EQ(checked_costs(planned, rounds.known()), expected);
  });
}

}  // namespace
}  // namespace tensoropt::testing
