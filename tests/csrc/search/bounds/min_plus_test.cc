// Min-plus passes and bounds against all strategies.

#include "search/bounds/min_plus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "problem/checks.h"
#include "problem/random_problem.h"
#include "search/bounds/bounds.h"
#include "search/bounds/min_plus_kernel.h"
#include "search/bounds/weighted_probe.h"
#include "search/scheduled.h"

namespace tensoropt::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double least(const std::vector<Cost>& costs, Weights weights) {
  double best = kInfinity;
  for (const Cost& cost : costs) {
    best = std::min(best, weights.of({cost.memory, cost.time}));
  }
  return best;
}

// Both kinds of values: the costs here are small integers, which floats hold.
template <typename Value>
class MinPlus : public ::testing::Test {};
using Values = ::testing::Types<float, double>;
TYPED_TEST_SUITE(MinPlus, Values);

// Sizes around those of vector registers, with configs that are not allowed.
TYPED_TEST(MinPlus, MatrixProductsEqualPlainLoops) {
  Dice dice(1);
  for (int round = 0; round < 300; ++round) {
    const MinPlusBlock block{dice.roll(1, 9), dice.roll(1, 40),
                             dice.roll(1, 20)};
    const auto values = [&dice](int count) {
      std::vector<TypeParam> list;
      for (int i = 0; i < count; ++i) {
        list.push_back(dice.roll(0, 3) == 0
                           ? std::numeric_limits<TypeParam>::infinity()
                           : static_cast<TypeParam>(dice.roll(0, 100)));
      }
      return list;
    };
    const auto terms = values(block.rows * block.inner);
    const auto wide = values(block.inner * block.width);
    auto out = values(block.rows * block.width);
    auto expected = out;
    for (int row = 0; row < block.rows; ++row) {
      for (int x = 0; x < block.inner; ++x) {
        for (int column = 0; column < block.width; ++column) {
          TypeParam& least = expected[row * block.width + column];
          least = std::min(least, terms[row * block.inner + x] +
                                      wide[x * block.width + column]);
        }
      }
    }
    multiply_min_plus(terms.data(), wide.data(), out.data(), block);
    EXPECT_EQ(out, expected)
        << block.rows << " x " << block.inner << " x " << block.width;
  }
}

TYPED_TEST(MinPlus, OptimumEqualsBruteForceAndItsTraceCostsThat) {
  for_scheduled(1, 20, [](const Scheduled& scheduled, Dice& dice) {
    const Weights weights{1.0 * dice.roll(0, 5), 1.0 * dice.roll(1, 5)};
    const MinPlusGraph graph(scheduled.pool, scheduled.root(),
                             scheduled.tables);
    PassMemory memory;
    MinPlusPass<TypeParam> pass(graph, memory);
    pass.run_inside(weights);
    EXPECT_EQ(pass.optimum(), least(brute_force(scheduled.problem), weights));
    const auto points = pass.trace(scheduled.schedule);
    double traced = 0;
    for (std::size_t t = 0; t < points.size(); ++t) {
      const Term& term = scheduled.schedule.terms[t];
      if (term.slot < 0) continue;
      const Frontier& frontier = scheduled.tables[term.expression].points;
      traced +=
          weights.of({frontier.memory[points[t]], frontier.time[points[t]]});
    }
    EXPECT_EQ(traced, pass.optimum());
  });
}

// For every node table: the best strategy through each of its configs.
TYPED_TEST(MinPlus, InsidePlusOutsideIsTheBestStrategyThroughACell) {
  for_scheduled(100, 20, [](const Scheduled& scheduled, Dice& dice) {
    const Weights weights{1.0 * dice.roll(1, 5), 1.0 * dice.roll(1, 5)};
    const MinPlusGraph graph(scheduled.pool, scheduled.root(),
                             scheduled.tables);
    PassMemory memory;
    MinPlusPass<TypeParam> pass(graph, memory);
    pass.run_inside(weights);
    pass.run_outside(Depth::kWhole);
    std::vector<std::vector<double>> best;
    for (int n = 0; n < scheduled.domains.num_nodes(); ++n) {
      best.emplace_back(scheduled.problem.nodes[n]->num_configs(), kInfinity);
    }
    for_all_configs(scheduled.problem, [&](const std::vector<int>& config) {
      const double cost =
          least(costs_of_configs(scheduled.problem, config), weights);
      for (std::size_t n = 0; n < config.size(); ++n) {
        best[n][config[n]] = std::min(best[n][config[n]], cost);
      }
    });
    for (const Term& term : scheduled.schedule.terms) {
      const Expression& expression = scheduled.pool[term.expression];
      if (expression.kind != Expression::Kind::kNode) continue;
      const auto& configs = scheduled.domains.configs_of(expression.domains[0]);
      for (std::size_t i = 0; i < configs.size(); ++i) {
        EXPECT_EQ(
            pass.inside(term.expression)[i] + pass.outside(term.expression)[i],
            best[term.slot][configs[i]]);
      }
    }
  });
}

TEST(WeightedProbe, StrategiesAreOnTheFrontierAndSpanIt) {
  for_scheduled(200, 20, [](const Scheduled& scheduled, Dice&) {
    const MinPlusGraph graph(scheduled.pool, scheduled.root(),
                             scheduled.tables);
    Workers workers(1);
    PassMemory memory;
    WeightedProbe probe(graph, scheduled.schedule, workers, memory,
                        Depth::kWhole);
    probe.solve_between(0, {}, 32);
    const auto& found = probe.strategies();
    const std::vector<Cost> all = brute_force(scheduled.problem);
    EXPECT_EQ(found.front().cost.memory, all.front().memory);
    EXPECT_EQ(found.back().cost.time, all.back().time);
    // On the hull: no strategy is below any line between neighbours.
    for (std::size_t i = 0; i + 1 < found.size(); ++i) {
      const Point a = found[i].cost;
      const Point b = found[i + 1].cost;
      const Weights line{a.time - b.time, b.memory - a.memory};
      EXPECT_EQ(least(all, line), line.of(a));
    }
  });
}

// What the bounds rule out is not needed by any strategy in a zone.
TEST(Bounds, KeepEveryConfigOfEveryStrategyInAZone) {
  for_scheduled(300, 20, [](const Scheduled& scheduled, Dice& dice) {
    const MinPlusGraph graph(scheduled.pool, scheduled.root(),
                             scheduled.tables);
    const int passes = dice.roll(2, 9);
    Workers workers(1);
    PassMemory memory;
    WeightedProbe probe(graph, scheduled.schedule, workers, memory,
                        Depth::kWhole);
    probe.solve_between(0, {}, passes);
    std::vector<Point> known;
    for (const auto& s : probe.strategies()) known.push_back(s.cost);
    const auto zones =
        join_zones(zones_between(known, dice.roll(0, 1) * 0.05, {}), kMaxZones);
    if (zones.empty()) return;
    const ZoneLimits limits(probe.weights(), probe.optima(), zones, kInfinity,
                            graph.rounding());
    Bounds bounds(graph, probe, limits, limits, workers);
    bounds.tighten(limits);
    std::map<int, int> table_of;
    for (const Term& term : scheduled.schedule.terms) {
      const auto& expression = scheduled.pool[term.expression];
      if (expression.kind == Expression::Kind::kNode) {
        table_of[term.slot] = term.expression;
      }
    }
    for_all_configs(scheduled.problem, [&](const std::vector<int>& config) {
      bool wanted = false;
      for (const Cost& cost : costs_of_configs(scheduled.problem, config)) {
        for (const Point& zone : zones) {
          wanted =
              wanted || (cost.memory < zone.memory && cost.time < zone.time);
        }
      }
      for (std::size_t n = 0; wanted && n < config.size(); ++n) {
        const auto& configs =
            scheduled.domains.configs_of(scheduled.domains.id(n));
        const auto at = std::find(configs.begin(), configs.end(), config[n]);
        EXPECT_GE(bounds.table(table_of[n]).rank(at - configs.begin()), 0);
      }
    });
  });
}

TEST(Zones, LieBetweenNeighbours) {
  const std::vector<Point> known{{10, 100}, {20, 50}, {40, 20}};
  EXPECT_EQ(zones_between(known, 0, {}),
            (std::vector<Point>{{20, 100}, {40, 50}}));
  EXPECT_EQ(zones_between(known, 1, {}),
            (std::vector<Point>{{10, 50}, {20, 25}}));
  const auto limited = zones_between(known, 0, {30, {30}});
  ASSERT_EQ(limited.size(), 2u);
  EXPECT_GT(limited[1].memory, 30);
  EXPECT_LT(limited[1].memory, 30.001);
  EXPECT_EQ(limited[1].time, 50);
  EXPECT_TRUE(zones_between(known, 0, {5, {5}}).empty());
  // Where nothing but picks are asked for, gaps with one of them.
  const auto picked =
      zones_between(known, 0, {.picks = {25, 40}, .only_picks = true});
  EXPECT_EQ(picked.size(), 1U);
}

// What fits a limit lies below a zone, whatever larger strategy is close to it.
TEST(Zones, ReachTheLimitsThatArePicked) {
  const std::vector<Point> known{{10, 100}, {20, 50}, {40, 20}};
  const auto zones = zones_between(known, 0.5, {.picks = {19, 20, 30, 40}});
  ASSERT_EQ(zones.size(), 2u);
  EXPECT_GT(zones[0].memory, 19);  // without the limit: 20 / 1.5
  EXPECT_LT(zones[0].memory, 20);
  EXPECT_GT(zones[1].memory, 30);  // 40 / 1.5
  EXPECT_EQ(zones[1].time, 50 / 1.5);
  const auto within = zone_within(known, 0.5, 19);
  ASSERT_TRUE(within.has_value());
  EXPECT_EQ(*within, (Point{zones[0].memory, 100 / 1.5}));
  EXPECT_EQ(zone_within(known, 0.5, 30), zones[1]);
  EXPECT_FALSE(zone_within(known, 0.5, 9).has_value());   // nothing fits
  EXPECT_FALSE(zone_within(known, 0.5, 40).has_value());  // the fastest does
}

// Whatever no known strategy stands for lies below a zone.
TEST(Zones, LeaveNothingOut) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const double factor = 1 + dice.roll(0, 40) / 100.0;
    std::vector<Point> known{{10, 200}};
    while (known.back().memory < 100 && known.back().time > 20) {
      const Point last = known.back();
      known.push_back(
          {last.memory + dice.roll(1, 20), last.time - dice.roll(1, 20)});
    }
    const auto zones = zones_between(known, factor - 1, {});
    for (int i = 0; i < 100; ++i) {
      const Point some{
          static_cast<double>(dice.roll(10, 120)),
          dice.roll(static_cast<int>(known.back().time), 200) * 1.0};
      const auto covers = [&](Point p) {
        return p.memory <= factor * some.memory && p.time <= factor * some.time;
      };
      const auto above = [&](Point zone) {
        return some.memory < zone.memory && some.time < zone.time;
      };
      EXPECT_TRUE(std::any_of(known.begin(), known.end(), covers) ||
                  std::any_of(zones.begin(), zones.end(), above))
          << some.memory << " " << some.time;
    }
  }
}

// A zone that reaches a limit may have more memory than the next one.
TEST(Zones, JoinedOnesHoldTheirParts) {
  const std::vector<Point> zones{{30, 9}, {20, 8}, {90, 1}};
  EXPECT_EQ(join_zones(zones, 2), (std::vector<Point>{{30, 9}, {90, 1}}));
}

TEST(Zones, AreJoinedWhenThereAreTooMany) {
  std::vector<Point> known;
  for (int i = 0; i <= 300; ++i) known.push_back({100.0 + i, 500.0 - i});
  const auto zones = join_zones(zones_between(known, 0, {}), kMaxZones);
  EXPECT_LE(zones.size(), kMaxZones);
  for (int i = 0; i < 300; ++i) {
    bool below = false;
    for (const Point& c : zones) {
      below = below || (101.0 + i <= c.memory && 500.0 - i <= c.time);
    }
    EXPECT_TRUE(below) << i;
  }
}

}  // namespace
}  // namespace tensoropt::testing
