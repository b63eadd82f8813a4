// What is promised beside strategies of other problems, against brute force:
// together with them, the points found stand for all strategies.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "common/check.h"
#include "problem/brute_force.h"
#include "problem/random_problem.h"
#include "search/checks.h"
#include "search/frontier_tracking.h"

namespace tensoropt::testing {
namespace {

// Near strategies of the problem, better and worse ones, and anywhere.
std::vector<Point> draw_others(Dice& dice, const std::vector<Cost>& all) {
  const int last = static_cast<int>(all.size()) - 1;
  std::vector<Point> others;
  for (int count = dice.roll(0, 12); count > 0; --count) {
    const double more = dice.chance(50) ? 0.2 : 2;
    const Cost& memory_of = all[dice.roll(0, last)];
    const Cost& time_of = dice.chance(70) ? memory_of : all[dice.roll(0, last)];
    others.push_back(
        {memory_of.memory * (1 + more * (dice.roll(0, 100) - 50) / 100),
         time_of.time * (1 + more * (dice.roll(0, 100) - 50) / 100)});
  }
  for (Point& other : others) {
    other = {std::max(0.0, other.memory), std::max(0.0, other.time)};
  }
  return others;
}

std::vector<Cost> united(const SearchResult& result,
                         const std::vector<Point>& others) {
  std::vector<Cost> all = costs(result);
  for (const Point& other : others) all.push_back({other.memory, other.time});
  return pareto(all);
}

double least_time_within(double limit, const std::vector<Cost>& costs) {
  double least = std::numeric_limits<double>::infinity();
  for (const Cost& cost : costs) {
    if (cost.memory <= limit) least = std::min(least, cost.time);
  }
  return least;
}

const RandomTables kWide{
    .max_configs = 3, .max_choices = 4, .largest_cost = 20000};

TEST(Others, StandForStrategiesTogetherWithWhatIsFound) {
  for_random_problems(1, 12, kWide, [](const Problem& problem, Dice& dice) {
    const std::vector<Cost> all = brute_force(problem);
    for (const double epsilon : {0.0, 0.01, 0.1}) {
      SearchOptions options = dice.chance(50) ? staged() : single_thread();
      options.epsilon = epsilon;
      options.others = draw_others(dice, all);
      const SearchResult result = search(problem, options);
      expect_unrolls_exactly(problem, result);
      EXPECT_EQ(result.min_memory(), all.front().memory);
      EXPECT_EQ(result.min_time(), all.back().time);
      expect_covers(united(result, options.others), all, epsilon);
    }
  });
}

TEST(Others, KeepTheBoundWithinLimits) {
  for_random_problems(50, 8, kWide, [](const Problem& problem, Dice& dice) {
    const std::vector<Cost> all = brute_force(problem);
    for (const double epsilon : {0.01, 0.1}) {
      SearchOptions options = dice.chance(50) ? staged() : single_thread();
      options.epsilon = epsilon;
      options.others = draw_others(dice, all);
      const int last = static_cast<int>(all.size()) - 1;
      const double limit = all[dice.roll(0, last)].memory;
      options.pick_limits = {limit};
      const SearchResult result = search(problem, options);
      EXPECT_LE(least_time_within(limit, united(result, options.others)),
                (1 + epsilon) * (1 + 1e-12) * least_time_within(limit, all));
    }
  });
}

// Where all is matched, little is left to be looked for.
TEST(Others, SaveTheSearchOfWhatTheyMatch) {
  Dice dice(1);
  const Problem problem = random_problem(
      dice, kWide, 8, {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}, {6, 7}});
  SearchOptions options = single_thread();
  options.epsilon = 0.01;
  const SearchResult alone = search(problem, options);
  options.others.assign(alone.points().begin(), alone.points().end());
  const SearchResult again = search(problem, options);
  EXPECT_LT(again.points().size(), alone.points().size());
  EXPECT_LT(again.stats().cells_alive, alone.stats().cells_alive);
}

// One that is faster than all leaves what needs less memory. The hull of it and
// the smallest is below all others, and rules out nothing; their own hull does.
TEST(Others, WhichAreFasterDoNotMakeTheRestHarder) {
  const RandomTables many{
      .max_configs = 24, .max_choices = 4, .largest_cost = 20000};
  std::vector<std::pair<int, int>> chain;
  for (int node = 1; node < 16; ++node) chain.emplace_back(node - 1, node);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const Problem problem = random_problem(dice, many, 16, chain);
    SearchOptions options = single_thread();
    options.epsilon = 0.001;
    const SearchResult alone = search(problem, options);
    const auto points = alone.points();
    const Point middle = points[points.size() * 7 / 8];
    options.others = {{middle.memory, points.back().time / 100}};
    const SearchResult rest = search(problem, options);
    EXPECT_LE(rest.stats().cells_alive, alone.stats().cells_alive);
    EXPECT_LE(rest.stats().pairs, alone.stats().pairs);
  }
}

TEST(Others, MustNotCostLessThanNothing) {
  Dice dice(1);
  const Problem problem = random_problem(dice, kWide, 2, {{0, 1}});
  SearchOptions options;
  options.others = {{1, -1}};
  EXPECT_THROW(search(problem, options), UserError);
}

}  // namespace
}  // namespace tensoropt::testing
