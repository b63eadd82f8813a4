#include "problem/sum_grid.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "problem/brute_force.h"
#include "problem/checks.h"
#include "problem/random_problem.h"

namespace tensoropt::testing {
namespace {

// A frontier of so many points: memory ascends, time descends, both unevenly.
Frontier curve(Dice& dice, int size) {
  const double step = dice.chance(50) ? 1 : 1e6;
  Point point{dice.roll(1, 1000) * step, size * 100.0 + dice.roll(1, 1000)};
  Frontier frontier;
  for (int i = 0; i < size; ++i) {
    frontier.push_back(point, 0, 0);
    point.memory += dice.roll(1, 200) * step;
    point.time -= dice.roll(1, 100);
  }
  return frontier;
}

std::vector<Cost> to_costs(const Frontier& frontier) {
  std::vector<Cost> costs;
  for (std::size_t i = 0; i < frontier.size(); ++i) {
    costs.push_back({frontier.memory[i], frontier.time[i]});
  }
  return costs;
}

std::vector<Cost> all_sums(const Frontier& a, const Frontier& b,
                           double memory_limit) {
  std::vector<Cost> sums;
  for (const Cost& x : to_costs(a)) {
    for (const Cost& y : to_costs(b)) {
      const Cost sum{x.memory + y.memory, x.time + y.time};
      if (sum.memory <= memory_limit) sums.push_back(sum);
    }
  }
  return pareto(sums);
}

void expect_sums(const Frontier& sums, const Frontier& a, const Frontier& b) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(sums.memory[i], a.memory[sums.left[i]] + b.memory[sums.right[i]]);
    EXPECT_EQ(sums.time[i], a.time[sums.left[i]] + b.time[sums.right[i]]);
    if (i == 0) continue;
    EXPECT_LT(sums.memory[i - 1], sums.memory[i]);
    EXPECT_GT(sums.time[i - 1], sums.time[i]);
  }
}

Tolerance any_tolerance(Dice& dice) {
  const double delta = dice.roll(1, 400) * 1e-4;
  return dice.chance(50) ? Tolerance{delta, delta} : Tolerance{0, delta};
}

TEST(SumGrid, StandsForAllSumsWithinTheTolerance) {
  int suitable = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const Frontier a = curve(dice, dice.roll(60, 160));
    const Frontier b = curve(dice, dice.roll(60, 160));
    const Tolerance tolerance = any_tolerance(dice);
    SumGrid grid;
    if (!grid.prepare(a.view(), b.view(), tolerance)) continue;
    ++suitable;
    const double limit = dice.chance(50)
                             ? std::numeric_limits<double>::infinity()
                             : a.memory.back() + b.memory.front();
    Frontier sums;
    grid.add_product(limit, sums);
    expect_sums(sums, a, b);
    expect_covers(to_costs(sums), all_sums(a, b, limit), tolerance);
    for (const double memory : sums.memory) EXPECT_LE(memory, limit);
  }
  EXPECT_GT(suitable, 20);
}

// Both ends of the sums stay, and thinning uses what the grid leaves of the
// tolerance.
TEST(SumGrid, ProductsOfLargeFrontiersStayWithinTheTolerance) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const Tolerance tolerance = any_tolerance(dice);
    FrontierBuilder builder(tolerance);
    std::vector<Cost> expected;
    std::vector<Frontier> operands;
    for (int product = dice.roll(1, 3); product > 0; --product) {
      const Frontier a = curve(dice, dice.roll(1, 160));
      const Frontier b = curve(dice, dice.roll(1, 160));
      builder.add_product(a.view(), b.view());
      const auto sums = all_sums(a, b, std::numeric_limits<double>::infinity());
      expected.insert(expected.end(), sums.begin(), sums.end());
    }
    expected = pareto(expected);
    Frontier result;
    builder.move_to(result);
    EXPECT_EQ(result.memory.front(), expected.front().memory);
    EXPECT_EQ(result.time.front(), expected.front().time);
    EXPECT_EQ(result.memory.back(), expected.back().memory);
    EXPECT_EQ(result.time.back(), expected.back().time);
    expect_covers(to_costs(result), expected, tolerance);
    EXPECT_LE(result.size(), expected.size());
  }
}

TEST(SumGrid, SuitsNoSumsWithoutFirstBits) {
  Dice dice(1);
  Frontier a = curve(dice, 300);
  SumGrid grid;
  const Tolerance tolerance{0.01, 0.01};
  EXPECT_TRUE(grid.prepare(a.view(), a.view(), tolerance));
  EXPECT_FALSE(grid.prepare(a.view(), a.view(), {}));
  EXPECT_FALSE(grid.prepare(a.view(), a.view(), {1e-9, 1e-9}));
  EXPECT_FALSE(grid.prepare(a.view(0, 10), a.view(), tolerance));
  a.memory.front() = 0;
  EXPECT_FALSE(grid.prepare(a.view(), a.view(), tolerance));
  a.memory.back() = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(grid.prepare(a.view(1, 300), a.view(1, 300), tolerance));
}

// What is kept are sums, few enough, with both ends.
TEST(SumGrid, NoMorePointsAreKeptThanAreWanted) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const auto most = static_cast<std::size_t>(dice.roll(2, 50));
    FrontierBuilder builder({1e-6, 1e-6},
                            std::numeric_limits<double>::infinity(), most);
    const Frontier a = curve(dice, dice.roll(2, 160));
    const Frontier b = curve(dice, dice.roll(2, 160));
    builder.add_product(a.view(), b.view());
    Frontier result;
    builder.move_to(result);
    EXPECT_LE(result.size(), most);
    expect_sums(result, a, b);
    EXPECT_EQ(result.memory.front(), a.memory.front() + b.memory.front());
    EXPECT_EQ(result.time.back(), a.time.back() + b.time.back());
  }
}

}  // namespace
}  // namespace tensoropt::testing
