// Whether something improves on known strategies, against brute force.

#include "search/improvement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "problem/brute_force.h"
#include "problem/random_problem.h"
#include "search/checks.h"

namespace tensoropt::testing {
namespace {

const RandomTables kWide{
    .max_configs = 3, .max_choices = 4, .largest_cost = 20000};

// Some of all strategies, all better or worse by up to a third.
std::vector<Point> draw_known(Dice& dice, const std::vector<Cost>& all) {
  std::vector<Point> known;
  const double factor = dice.chance(30) ? 1 : dice.roll(67, 134) / 100.0;
  const int share = dice.roll(10, 100);
  for (const Cost& cost : all) {
    if (!dice.chance(share)) continue;
    known.push_back({cost.memory * factor, cost.time * factor});
  }
  return known;
}

bool is_covered(const Cost& cost, const std::vector<Point>& known,
                double most_bytes, double epsilon) {
  const double factor = (1 + epsilon) * (1 + 1e-12);
  return std::ranges::any_of(known, [&](Point point) {
    return point.memory <= std::min(most_bytes, cost.memory * factor) &&
           point.time <= cost.time * factor;
  });
}

// Those of all strategies that nothing known stands for.
int count_beside(const std::vector<Cost>& all, const SearchOptions& options,
                 double epsilon) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> limits = options.pick_limits;
  limits.push_back(options.memory_limit);
  limits.push_back(kInfinity);
  int count = 0;
  for (const Cost& cost : all) {
    if (cost.memory > options.memory_limit) continue;
    count += std::ranges::any_of(limits, [&](double limit) {
      return cost.memory <= limit &&
             !is_covered(cost, options.others, limit, epsilon);
    });
  }
  return count;
}

TEST(Improvement, IsSeenWhereverThereIsSome) {
  int seen = 0;
  int unseen = 0;
  for_random_problems(1, 20, kWide, [&](const Problem& problem, Dice& dice) {
    const std::vector<Cost> all = brute_force(problem);
    for (const double epsilon : {0.0, 0.01, 0.1}) {
      SearchOptions options = dice.chance(50) ? staged() : single_thread();
      options.epsilon = epsilon;
      options.others = draw_known(dice, all);
      const int last = static_cast<int>(all.size()) - 1;
      const auto draw_limit = [&] {
        return all[dice.roll(0, last)].memory + dice.roll(-1, 1);
      };
      if (dice.chance(40)) options.memory_limit = draw_limit();
      if (dice.chance(40)) options.pick_limits = {draw_limit(), draw_limit()};
      options.memory_limit = std::max(0.0, options.memory_limit);
      for (double& limit : options.pick_limits) limit = std::max(0.0, limit);
      const bool improves = may_improve(problem, options);
      (improves ? seen : unseen) += 1;
      if (improves) {
        EXPECT_GT(count_beside(all, options, 0), 0);
      } else {
        EXPECT_EQ(count_beside(all, options, epsilon), 0);
      }
    }
  });
  EXPECT_GT(seen, 100);
  EXPECT_GT(unseen, 100);
}

TEST(Improvement, IsAnyStrategyWhereNothingIsKnown) {
  for_random_problems(40, 3, kWide, [](const Problem& problem, Dice&) {
    SearchOptions options = single_thread();
    EXPECT_TRUE(may_improve(problem, options));
    options.memory_limit = brute_force(problem).front().memory / 2;
    EXPECT_FALSE(may_improve(problem, options));
  });
}

}  // namespace
}  // namespace tensoropt::testing
