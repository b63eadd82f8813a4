// The weightings that are solved for zones: against all weightings that may be
// the best one.

#include "search/bounds/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "common/workers.h"
#include "problem/brute_force.h"
#include "problem/random_problem.h"
#include "search/bounds/min_plus.h"
#include "search/bounds/weighted_probe.h"
#include "search/scheduled.h"

namespace tensoropt::testing {
namespace {

constexpr double kRounding = 1e-9;

std::vector<Point> random_points(Dice& dice) {
  std::vector<Point> points;
  for (int count = dice.roll(2, 12); count > 0; --count) {
    points.push_back({1.0 * dice.roll(1, 1000), 1.0 * dice.roll(1, 1000)});
  }
  return pareto(std::move(points));
}

double least_of(const std::vector<Point>& points, Weights weights) {
  double least = std::numeric_limits<double>::infinity();
  for (const Point& point : points) least = std::min(least, weights.of(point));
  return least;
}

// How far all points are above the corner under the best weighting, relatively:
// the best one is that of an edge between two of them, or of one cost alone.
double farthest_above(const std::vector<Point>& points, Point corner) {
  std::vector<Weights> all{{1, 0}, {0, 1}};
  for (std::size_t i = 0; i < points.size(); ++i) {
    for (std::size_t j = i + 1; j < points.size(); ++j) {
      all.push_back(equal_weights(points[i], points[j]));
    }
  }
  double most = 0;
  for (const Weights& weights : all) {
    most = std::max(most, least_of(points, weights) / weights.of(corner));
  }
  return most;
}

// A corner that is seen from nothing between the points.
Point corner_between(Dice& dice, const std::vector<Point>& points) {
  const double part = dice.roll(1, 99) / 100.0;
  const double lowered = dice.roll(30, 110) / 100.0;
  const Point a = points.front();
  const Point b = points.back();
  return {lowered * (a.memory + part * (b.memory - a.memory)),
          lowered * (a.time + part * (b.time - a.time))};
}

TEST(WeightsAbove, AreTheBestForACorner) {
  for (int seed = 1; seed <= 500; ++seed) {
    Dice dice(seed);
    const std::vector<Point> points = random_points(dice);
    if (points.size() < 2) continue;
    const Point corner = corner_between(dice, points);
    const auto weights = weights_above(points, {corner}, {}, 1);
    ASSERT_EQ(weights.size(), 1) << "seed " << seed;
    const double above =
        least_of(points, weights.front()) / weights.front().of(corner);
    EXPECT_GE(above, farthest_above(points, corner) * (1 - kRounding))
        << "seed " << seed;
  }
}

TEST(WeightsAbove, AreNotAskedTwiceAndSpread) {
  std::vector<Point> points;
  std::vector<Point> corners;
  for (int i = 1; i <= 9; ++i) {
    points.push_back({1.0 * i * i, 1.0 * (10 - i) * (10 - i)});
  }
  for (std::size_t i = 0; i + 1 < points.size(); ++i) {
    corners.push_back({(points[i].memory + points[i + 1].memory) / 2,
                       (points[i].time + points[i + 1].time) / 2});
  }
  const auto all = weights_above(points, corners, {}, 100);
  ASSERT_EQ(all.size(), 8);
  const auto two = weights_above(points, corners, {}, 2);
  EXPECT_EQ(two, (std::vector<Weights>{all[2], all[6]}));
  const auto rest = weights_above(points, corners, two, 100);
  EXPECT_EQ(rest.size(), 6);
  EXPECT_TRUE(weights_above(points, corners, all, 100).empty());
  EXPECT_TRUE(weights_above({points[0]}, corners, {}, 100).empty());
}

// Whoever asks on rules out every corner that any weighting rules out.
TEST(WeightsAbove, LeadTheProbeToAllThatCanBeRuledOut) {
  constexpr double kFloats = 1e-5;
  int checked = 0;
  for_scheduled(1, 40, [&](const Scheduled& scheduled, Dice& dice) {
    std::vector<Point> all;
    for (const Cost& cost : brute_force(scheduled.problem)) {
      all.push_back({cost.memory, cost.time});
    }
    if (all.size() < 2) return;
    const Point corner = corner_between(dice, all);
    if (farthest_above(all, corner) < 1 + kFloats) return;
    ++checked;
    const MinPlusGraph graph(scheduled.pool, scheduled.root(),
                             scheduled.tables);
    Workers workers(1);
    PassMemory memory;
    WeightedProbe probe(graph, scheduled.schedule, workers, memory,
                        Depth::kWhole);
    probe.solve_between(0, {}, 2);
    auto weightings = probe.weightings_for({corner}, 4);
    while (!weightings.empty()) {
      probe.solve(weightings);
      weightings = probe.weightings_for({corner}, 4);
    }
    bool is_out = false;
    for (std::size_t w = 0; w < probe.weights().size(); ++w) {
      is_out = is_out || probe.optima()[w] > probe.weights()[w].of(corner);
    }
    EXPECT_TRUE(is_out);
  });
  EXPECT_GT(checked, 50);
}

}  // namespace
}  // namespace tensoropt::testing
