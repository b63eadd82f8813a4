// What supporting lines say that strategies cost at least, against brute force.

#include "search/supporting_lines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "problem/brute_force.h"
#include "problem/random_problem.h"
#include "search/checks.h"

namespace tensoropt::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const RandomTables kWide{
    .max_configs = 3, .max_choices = 4, .largest_cost = 20000};

double least_time(const std::vector<Cost>& costs, double limit) {
  double least = kInfinity;
  for (const Cost& cost : costs) {
    if (cost.memory < limit) least = std::min(least, cost.time);
  }
  return least;
}

TEST(SupportingLines, NoStrategyIsBelow) {
  double told = 0;
  double least = 0;
  for_random_problems(1, 12, kWide, [&](const Problem& problem, Dice& dice) {
    const std::vector<Cost> all = brute_force(problem);
    const SupportingLines lines = supporting_lines(
        problem, {.most = static_cast<std::size_t>(dice.roll(2, 12))});
    ASSERT_TRUE(lines.has_strategies());
    EXPECT_LE(lines.least_bytes(), all.front().memory);
    for (const Cost& cost : all) {
      const double seconds = lines.least_seconds(cost.memory);
      EXPECT_LE(seconds, cost.time * (1 + 1e-12));
      told += seconds;
      least += cost.time;
    }
    EXPECT_LE(lines.least_seconds(kInfinity), all.back().time);
    EXPECT_GE(lines.least_seconds(kInfinity), all.back().time * (1 - 1e-5));
  });
  EXPECT_GT(told, 0.8 * least);
}

TEST(SupportingLines, StepsAreNoLongerThanStrategiesBelowEachLimit) {
  for_random_problems(30, 10, kWide, [](const Problem& problem, Dice& dice) {
    const std::vector<Cost> all = brute_force(problem);
    std::vector<double> limits;
    const int last = static_cast<int>(all.size()) - 1;
    for (int count = dice.roll(0, 6); count > 0; --count) {
      limits.push_back(all[dice.roll(0, last)].memory + dice.roll(0, 2));
    }
    std::sort(limits.begin(), limits.end());
    const std::vector<Point> steps =
        supporting_lines(problem, {}).steps(limits);
    limits.push_back(kInfinity);
    for (const double limit : limits) {
      double seconds = kInfinity;
      for (const Point& step : steps) {
        if (step.memory < limit) seconds = step.time;
      }
      EXPECT_LE(seconds, least_time(all, limit) * (1 + 1e-12));
    }
    for (std::size_t i = 1; i < steps.size(); ++i) {
      EXPECT_LT(steps[i - 1].memory, steps[i].memory);
      EXPECT_GT(steps[i - 1].time, steps[i].time);
    }
  });
}

TEST(SupportingLines, NoneOfSeveralProblemsHasAStrategyBelowItsOwn) {
  for (int seed = 50; seed < 60; ++seed) {
    std::vector<Problem> problems;
    for_random_problems(seed * 3, 3, kWide, [&](const Problem& problem, Dice&) {
      problems.push_back(problem);
    });
    problems.push_back(problems.front());
    problems.emplace_back();
    problems.back().nodes = {std::make_shared<NodeTable>(
        std::vector<std::vector<Choice>>{std::vector<Choice>{}})};
    const std::vector<SupportingLines> found =
        supporting_lines_of(problems, {.most = 12});
    ASSERT_EQ(found.size(), problems.size());
    EXPECT_FALSE(found.back().has_strategies());
    double told = 0;
    double least = 0;
    for (std::size_t p = 0; p + 1 < problems.size(); ++p) {
      for (const Cost& cost : brute_force(problems[p])) {
        const double seconds = found[p].least_seconds(cost.memory);
        EXPECT_LE(seconds, cost.time * (1 + 1e-12));
        EXPECT_LE(found[p].least_bytes(), cost.memory);
        told += seconds;
        least += cost.time;
      }
    }
    EXPECT_GT(told, 0.7 * least);
  }
}

TEST(SupportingLines, ThereAreNoneWithoutStrategies) {
  const auto node = std::make_shared<NodeTable>(
      std::vector<std::vector<Choice>>{{{1, 1, 0}}});
  const Problem problem{{node, node},
                        {{0, 1, EdgeTable::Builder(1, 1).build()}}};
  const SupportingLines lines = supporting_lines(problem, {});
  EXPECT_FALSE(lines.has_strategies());
  EXPECT_TRUE(lines.steps({1, 2}).empty());
}

}  // namespace
}  // namespace tensoropt::testing
