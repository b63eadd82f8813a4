#include "baselines/baselines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "problem/frontier.h"
#include "space/small_space.h"
#include "space/space_problem.h"

namespace tensoropt::testing {
namespace {

class BaselinesTest : public ::testing::Test {
 protected:
  BaselineResult find(Baseline baseline) {
    return baselines_.find(baseline, exact_);
  }

  const SearchOptions exact_;
  const SmallSpace small_;
  const Problem problem_ = SpaceProblem(*small_.space).build(1);
  Baselines baselines_{*small_.space, problem_};
};

// Every map of both axes to a name or nothing, one by one.
TEST_F(BaselinesTest, MeshTensorFlowIsTheBestOfAllMaps) {
  std::vector<Point> all;
  const int names = baselines_.roles().dims().num_names();
  for (int outer = -1; outer < names; ++outer) {
    for (int inner = -1; inner < names; ++inner) {
      const BaselineResult one = baselines_.play(
          {{RoleKind::kSplit, outer}, {RoleKind::kSplit, inner}}, exact_);
      all.insert(all.end(), one.points().begin(), one.points().end());
    }
  }
  std::erase_if(all, [&](Point point) {
    return std::any_of(all.begin(), all.end(), [&](Point other) {
      return dominates(other, point) && !(other == point);
    });
  });
  const auto by_memory = [](Point a, Point b) { return a.memory < b.memory; };
  const std::set<Point, decltype(by_memory)> expected(all.begin(), all.end(),
                                                      by_memory);
  const BaselineResult found = find(Baseline::kMeshTensorFlow);
  EXPECT_EQ(std::vector<Point>(found.points().begin(), found.points().end()),
            std::vector<Point>(expected.begin(), expected.end()));
  EXPECT_GT(found.points().size(), 1U);
}

TEST_F(BaselinesTest, PointsUnrollToStrategiesOfTheWholeSpace) {
  for (const Baseline baseline :
       {Baseline::kDataParallel, Baseline::kZero3, Baseline::kMegatron,
        Baseline::kMeshTensorFlow, Baseline::kOptCnn, Baseline::kToFu}) {
    const BaselineResult found = find(baseline);
    ASSERT_FALSE(found.points().empty());
    for (int i = 0; i < static_cast<int>(found.points().size()); ++i) {
      const Strategy strategy = found.unroll(i);
      const Point point = found.points()[i];
      const auto same = evaluate(problem_, strategy.config);
      EXPECT_TRUE(std::any_of(same.begin(), same.end(),
                              [&](Point p) {
                                return p.memory <= point.memory * (1 + 1e-12) &&
                                       p.time <= point.time * (1 + 1e-12);
                              }))
          << "point " << i;
    }
  }
}

TEST_F(BaselinesTest, OptCnnIsTheFastestThatStoresParametersAsUsed) {
  const BaselineResult fastest = find(Baseline::kOptCnn);
  ASSERT_EQ(fastest.points().size(), 1U);
  for (const Baseline other : {Baseline::kDataParallel, Baseline::kMegatron}) {
    EXPECT_LE(fastest.points()[0].time, find(other).points().back().time);
  }
  const Strategy strategy = fastest.unroll(0);
  for (const SpaceEdge& edge : small_.space->edges()) {
    if (small_.graph.value(edge.value).producer != small_.producer(small_.w1)) {
      continue;
    }
    EXPECT_EQ(
        small_.space->source_port(edge, strategy.config[edge.source]).value,
        small_.space->target_port(edge, strategy.config[edge.target]).value);
  }
}

TEST_F(BaselinesTest, ToFuIsOnePointOfLeastMemory) {
  const BaselineResult found = find(Baseline::kToFu);
  ASSERT_EQ(found.points().size(), 1U);
  EXPECT_LE(found.points()[0].memory,
            find(Baseline::kZero3).points()[0].memory);
}

TEST_F(BaselinesTest, DataParallelIsTheMegatronOfDegreeOne) {
  const Point data = find(Baseline::kDataParallel).points().back();
  const BaselineResult megatron = find(Baseline::kMegatron);
  EXPECT_TRUE(std::any_of(megatron.points().begin(), megatron.points().end(),
                          [&](Point p) { return dominates(p, data); }));
  EXPECT_LT(megatron.points()[0].memory,
            find(Baseline::kDataParallel).points()[0].memory);
}

}  // namespace
}  // namespace tensoropt::testing
