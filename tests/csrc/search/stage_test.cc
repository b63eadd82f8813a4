// A stage against all strategies: what it finds, what it says may matter, and
// the error that it tells.

#include "search/stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "problem/checks.h"
#include "search/checks.h"
#include "search/round_runner.h"
#include "search/scheduled.h"

namespace tensoropt::testing {
namespace {

const RandomTables kTables{.max_configs = 3, .density = 80, .cost_step = 100};

std::vector<Cost> costs_of(const std::vector<KnownStrategy>& strategies,
                           const std::vector<Point>& given = {}) {
  std::vector<Cost> costs;
  for (const auto& s : strategies) {
    costs.push_back({s.cost.memory, s.cost.time});
  }
  for (const Point& p : given) costs.push_back({p.memory, p.time});
  return costs;
}

void expect_unrolls(const Solution& solution) {
  for (std::size_t i = 0; i < solution.known().size(); ++i) {
    const Point cost = solution.known()[i].cost;
    EXPECT_EQ(recompute(solution.problem(), solution.unroll(i)),
              (Cost{cost.memory, cost.time}));
  }
}

TEST(Stage, FindsTheFrontierOfAllStrategies) {
  for_random_problems(1, 6, kTables, [](const Problem& problem, Dice& dice) {
    Workers workers(dice.roll(1, 2));
    PassMemory memory;
    for (const bool use_bounds : {true, false}) {
      Solution solution(problem, {}, {});
      Stage stage(
          solution,
          {.use_bounds = use_bounds, .workers = workers, .memory = memory});
      stage.probe({}, 9, Depth::kWhole);
      stage.search({});
      EXPECT_EQ(costs_of(solution.known()), brute_force(problem));
      EXPECT_EQ(stage.error(), 0);
      expect_unrolls(solution);
    }
  });
}

TEST(Stage, IsWithinTheErrorThatItTells) {
  for_random_problems(100, 6, kTables, [](const Problem& problem, Dice&) {
    Workers workers(1);
    PassMemory memory;
    for (const bool use_bounds : {true, false}) {
      Solution solution(problem, {}, {});
      Stage stage(solution, {.known_epsilon = 0.1,
                             .thin_epsilon = 0.1,
                             .use_bounds = use_bounds,
                             .workers = workers,
                             .memory = memory});
      stage.probe({}, 9, Depth::kWhole);
      stage.search({});
      EXPECT_LE(stage.error(), 0.21 + 1e-12);
      expect_covers(costs_of(solution.known()), brute_force(problem),
                    stage.error());
    }
  });
}

// Costs that others have found: some of the frontier, and one no strategy has.
std::vector<Point> some_of(const std::vector<Cost>& all, Dice& dice) {
  std::vector<Point> given{{all.back().memory + 5, all.back().time + 7}};
  for (const Cost& cost : all) {
    if (dice.chance(40)) given.push_back({cost.memory, cost.time});
  }
  return given;
}

TEST(Stage, TogetherWithWhatIsGivenCoversAllStrategies) {
  for_random_problems(200, 6, kTables, [](const Problem& problem, Dice& dice) {
    const auto all = brute_force(problem);
    if (all.empty()) return;
    const auto given = some_of(all, dice);
    Workers workers(1);
    PassMemory memory;
    Solution solution(problem, {}, {});
    Stage stage(solution, {.workers = workers, .memory = memory});
    stage.probe(given, 5, Depth::kWhole);
    stage.search(given);
    expect_covers(costs_of(solution.known(), given), all, 0);
    expect_covers(all, costs_of(solution.known()), 0);
  });
}

TEST(Stage, ConfigsOfBetterStrategiesArePromising) {
  std::size_t left_out = 0;
  for_random_problems(300, 6, kTables, [&](const Problem& problem, Dice& dice) {
    const auto all = brute_force(problem);
    if (all.empty()) return;
    const auto given = some_of(all, dice);
    Workers workers(1);
    PassMemory memory;
    Solution solution(problem, {}, {});
    Stage stage(solution, {.workers = workers, .memory = memory});
    stage.probe(given, 5, dice.chance(50) ? Depth::kWhole : Depth::kNearRoot);
    const auto masks = stage.promising(given);
    const auto known = costs_of(solution.known(), given);
    for_all_configs(problem, [&](const std::vector<int>& config) {
      bool allowed = masks.has_value();
      for (std::size_t n = 0; allowed && n < config.size(); ++n) {
        allowed = (*masks)[n][config[n]];
      }
      if (allowed) return;
      ++left_out;
      expect_covers(known, costs_of_configs(problem, config), 0);
    });
  });
  EXPECT_GT(left_out, 0u);
}

TEST(Stage, PicksWithinALimitAreNotReplacedByWhatDoesNotFit) {
  for_random_problems(400, 6, kTables, [](const Problem& problem, Dice& dice) {
    const auto all = brute_force(problem);
    if (all.empty()) return;
    const double limit =
        all[dice.roll(0, static_cast<int>(all.size()) - 1)].memory;
    Workers workers(1);
    PassMemory memory;
    Solution solution(problem, {}, {});
    Stage stage(solution, {.known_epsilon = 0.1,
                           .thin_epsilon = 0.1,
                           .limits = {.most = limit, .picks = {limit}},
                           .workers = workers,
                           .memory = memory});
    stage.probe({}, 9, Depth::kWhole);
    stage.search({});
    double best = std::numeric_limits<double>::infinity();
    for (const Cost& cost : all) {
      if (cost.memory <= limit) best = std::min(best, cost.time);
    }
    double found = std::numeric_limits<double>::infinity();
    for (const Cost& cost : costs_of(solution.known())) {
      if (cost.memory <= limit) found = std::min(found, cost.time);
    }
    EXPECT_LE(found, best * (1 + stage.error()) * (1 + 1e-12));
  });
}

}  // namespace
}  // namespace tensoropt::testing
