#include "search/order/schedule.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "search/order/domains.h"

namespace tensoropt::testing {
namespace {

constexpr int kNodes = 9;
constexpr int kConfigs = 3;

// All nodes are neighbours: no schedule goes without conditioning.
Problem clique() {
  const auto node = std::make_shared<NodeTable>(
      std::vector<std::vector<Choice>>(kConfigs, {Choice{}}));
  EdgeTable::Builder builder(kConfigs, kConfigs);
  for (int s = 0; s < kConfigs; ++s) {
    for (int t = 0; t < kConfigs; ++t) builder.add(s, t, {});
  }
  const auto edge = std::move(builder).build();
  Problem problem;
  for (int n = 0; n < kNodes; ++n) {
    problem.nodes.push_back(node);
    for (int m = 0; m < n; ++m) problem.edges.push_back({m, n, edge});
  }
  return problem;
}

struct Scheduled {
  Schedule schedule;
  int num_expressions = 0;
};

Scheduled scheduled(const Problem& problem,
                    std::optional<ConditioningBudget> budget) {
  const Domains domains(problem, {});
  ExpressionPool pool(domains);
  ScheduleOptions options;
  options.hubs.emplace();
  options.budget = budget;
  Schedule schedule = make_schedule(problem, options, pool);
  return {std::move(schedule), pool.size()};
}

TEST(Schedule, ABudgetSaysTheSameOfOneThatIsGivenUpEarly) {
  const Problem problem = clique();
  const Scheduled whole = scheduled(problem, std::nullopt);
  ASSERT_GT(whole.schedule.conditioning_work, 0);
  for (const double share : {0.0, 0.01, 0.5, 0.99, 1.0, 2.0}) {
    for (const double cells : {0.5, 1.0}) {
      const ConditioningBudget budget{share * whole.schedule.conditioning_work,
                                      cells * whole.schedule.cells};
      const Scheduled within = scheduled(problem, budget);
      EXPECT_EQ(budget.allows(within.schedule), budget.allows(whole.schedule))
          << share << " of the work, " << cells << " of the cells";
      EXPECT_EQ(within.schedule.root >= 0, budget.allows(whole.schedule));
    }
  }
}

TEST(Schedule, OneBeyondTheBudgetMakesFewerTables) {
  const Problem problem = clique();
  const Scheduled whole = scheduled(problem, std::nullopt);
  const Scheduled none = scheduled(problem, ConditioningBudget{0, 1e300});
  EXPECT_GT(none.schedule.num_left, 0);
  EXPECT_LT(none.num_expressions, whole.num_expressions / 2);
}

}  // namespace
}  // namespace tensoropt::testing
