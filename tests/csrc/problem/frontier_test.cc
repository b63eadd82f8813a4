#include "problem/frontier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "problem/brute_force.h"
#include "problem/checks.h"
#include "problem/random_problem.h"

namespace tensoropt::testing {
namespace {

std::vector<Cost> to_costs(const FrontierView& view) {
  std::vector<Cost> costs;
  for (std::size_t i = 0; i < view.size(); ++i) {
    costs.push_back({view.memory[i], view.time[i]});
  }
  return costs;
}

Frontier make(const std::vector<Cost>& points, Tolerance tolerance = {}) {
  FrontierBuilder builder(tolerance);
  for (std::size_t i = 0; i < points.size(); ++i) {
    builder.add({points[i].memory, points[i].time},
                static_cast<std::uint32_t>(i), 0);
  }
  Frontier frontier;
  builder.move_to(frontier);
  return frontier;
}

std::vector<Cost> random_points(Dice& dice, int count, int largest) {
  std::vector<Cost> points(count);
  for (Cost& p : points) {
    p = {static_cast<double>(dice.roll(0, largest)),
         static_cast<double>(dice.roll(0, largest))};
  }
  return points;
}

TEST(FrontierBuilder, KeepsWhatNothingDominatesAndTheFirstOfEquals) {
  const Frontier f = make({{5, 5}, {3, 7}, {5, 5}, {6, 5}, {5, 6}, {4, 5}});
  EXPECT_EQ(to_costs(f.view()), (std::vector<Cost>{{3, 7}, {4, 5}}));
  EXPECT_EQ(f.left, (std::vector<std::uint32_t>{1, 5}));
  EXPECT_EQ(make({{1, 1}, {1, 1}}).left, std::vector<std::uint32_t>{0});
}

TEST(FrontierBuilder, EqualsParetoOnRandomPoints) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const auto points = random_points(dice, dice.roll(1, 300), 60);
    EXPECT_EQ(to_costs(make(points).view()), pareto(points));
  }
}

TEST(FrontierBuilder, ProductEqualsParetoOfAllSums) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const int largest = dice.chance(50) ? 30 : 100000;
    FrontierBuilder builder;
    std::vector<Cost> sums;
    std::vector<Frontier> operands;
    for (int product = dice.roll(1, 4); product > 0; --product) {
      const Frontier a = make(random_points(dice, dice.roll(1, 400), largest));
      const Frontier b = make(random_points(dice, dice.roll(1, 40), largest));
      builder.add_product(a.view(), b.view());
      for (const Cost& x : to_costs(a.view())) {
        for (const Cost& y : to_costs(b.view())) {
          sums.push_back({x.memory + y.memory, x.time + y.time});
        }
      }
    }
    Frontier result;
    builder.move_to(result);
    EXPECT_EQ(to_costs(result.view()), pareto(sums));
  }
}

// Sums wait for others before they are merged: of many small products, the
// first of equals is kept all the same.
TEST(FrontierBuilder, ManyProductsEqualParetoOfAllSums) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const int largest = dice.chance(50) ? 40 : 4000;
    std::vector<Cost> sums;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> sources;
    FrontierBuilder builder;
    for (int product = dice.roll(1, 60); product > 0; --product) {
      const Frontier a = make(random_points(dice, dice.roll(1, 12), largest));
      const Frontier b = make(random_points(dice, dice.roll(1, 12), largest));
      FrontierView left = a.view();
      FrontierView right = b.view();
      left.first = 100 * static_cast<std::uint32_t>(product);
      right.first = left.first + 50;
      builder.add_product(left, right);
      const bool by_left = left.size() <= right.size();
      const FrontierView& few = by_left ? left : right;
      const FrontierView& many = by_left ? right : left;
      for (std::size_t i = 0; i < few.size(); ++i) {
        for (std::size_t j = 0; j < many.size(); ++j) {
          sums.push_back(
              {few.memory[i] + many.memory[j], few.time[i] + many.time[j]});
          const auto one = few.first + static_cast<std::uint32_t>(i);
          const auto other = many.first + static_cast<std::uint32_t>(j);
          sources.emplace_back(by_left ? one : other, by_left ? other : one);
        }
      }
    }
    Frontier found;
    builder.move_to(found);
    EXPECT_EQ(to_costs(found.view()), pareto(sums));
    for (std::size_t i = 0; i < found.size(); ++i) {
      const Cost cost{found.memory[i], found.time[i]};
      const auto at = std::find(sums.begin(), sums.end(), cost) - sums.begin();
      EXPECT_EQ(std::pair(found.left[i], found.right[i]), sources[at]);
    }
  }
}

// 2^53 swallows small differences: sums of neighbours become equal.
TEST(FrontierBuilder, RoundingLeavesNoEqualNeighbours) {
  const double large = 9007199254740992;
  std::vector<Cost> steps;
  for (int i = 0; i < 40; ++i) steps.push_back({1.0 * i, 40.0 - i});
  for (const Cost& shift : {Cost{large, 0}, Cost{0, large}}) {
    FrontierBuilder builder;
    builder.add_product(make(steps).view(), make({shift}).view());
    builder.add_product(make(steps).view(), make({shift}).view());
    Frontier sum;
    builder.move_to(sum);
    for (std::size_t i = 0; i + 1 < sum.size(); ++i) {
      EXPECT_LT(sum.memory[i], sum.memory[i + 1]);
      EXPECT_GT(sum.time[i], sum.time[i + 1]);
    }
  }
}

TEST(FrontierBuilder, BackPointersAddUp) {
  Dice dice(3);
  const Frontier a = make(random_points(dice, 200, 1000));
  const Frontier b = make(random_points(dice, 200, 1000));
  FrontierBuilder builder;
  builder.add_product(a.view(), b.view());
  Frontier sum;
  builder.move_to(sum);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    EXPECT_EQ(sum.memory[i], a.memory[sum.left[i]] + b.memory[sum.right[i]]);
    EXPECT_EQ(sum.time[i], a.time[sum.left[i]] + b.time[sum.right[i]]);
  }
}

TEST(FrontierBuilder, RefusesAboveTheMemoryLimit) {
  FrontierBuilder builder({}, 5);
  builder.add({5, 1}, 0, 0);
  builder.add({6, 0}, 1, 0);
  EXPECT_TRUE(builder.refuses({5.5, 0}));
  EXPECT_FALSE(builder.refuses({4, 3}));
  EXPECT_TRUE(builder.refuses({5, 1}));
  Frontier frontier;
  builder.move_to(frontier);
  EXPECT_EQ(to_costs(frontier.view()), (std::vector<Cost>{{5, 1}}));
}

TEST(Thin, CoversWithinDeltaAndKeepsBothEnds) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const auto points = random_points(dice, dice.roll(1, 3000), 5000);
    const double delta = dice.roll(1, 200) / 1000.0;
    const Frontier exact = make(points);
    for (const Tolerance tolerance : {Tolerance{delta, delta}, {0, delta}}) {
      const Frontier thinned = make(points, tolerance);
      EXPECT_LE(thinned.size(), exact.size());
      EXPECT_EQ(thinned.memory.front(), exact.memory.front());
      EXPECT_EQ(thinned.time.front(), exact.time.front());
      EXPECT_EQ(thinned.memory.back(), exact.memory.back());
      EXPECT_EQ(thinned.time.back(), exact.time.back());
      expect_covers(to_costs(thinned.view()), to_costs(exact.view()),
                    tolerance);
    }
  }
}

TEST(Thin, HandSized) {
  const Frontier f =
      make({{100, 100}, {101, 99}, {102, 98}, {103, 97}, {200, 10}});
  // 100 s stand for 99 s within 2 %, but not for 98 s; 103 B stand for 102 B.
  EXPECT_EQ(thin(f.view(), {0.02, 0.02}),
            (std::vector<bool>{true, false, false, true, true}));
  EXPECT_EQ(thin(f.view(), {0, 0.02}),
            (std::vector<bool>{true, false, true, false, true}));
  EXPECT_EQ(thin(f.view(), {}), std::vector<bool>(5, true));
  EXPECT_TRUE(thin({}, {0.1, 0.1}).empty());
}

}  // namespace
}  // namespace tensoropt::testing
