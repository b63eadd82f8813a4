#include "describe/explain.h"

#include <gtest/gtest.h>

#include "common/check.h"
#include "space/small_space.h"

namespace tensoropt {
namespace {

using testing::SmallSpace;

NodeExplanation explanation_of(const SmallSpace& small, NodeId node) {
  for (const NodeExplanation& explanation : explain(*small.space)) {
    if (explanation.space_node == small.space->node_of(node)) {
      return explanation;
    }
  }
  TO_ASSERT(false, "node {} is not explained", node);
}

TEST(Explain, EveryOperatorAndParameterIsExplained) {
  const SmallSpace small;
  const std::size_t operators = 5, parameters = 3;
  EXPECT_EQ(explain(*small.space).size(), operators + parameters);
}

TEST(Explain, UnevenSplitsAreThoseThatLeaveConfigsOut) {
  const SmallSpace small(/*batch=*/3);  // by 2, but 4 would leave one with none
  const NodeExplanation fc1 = explanation_of(small, small.fc1);
  ASSERT_EQ(fc1.uneven_splits.size(), 1);
  EXPECT_EQ(fc1.uneven_splits[0].factor, "b0");
  EXPECT_EQ(fc1.uneven_splits[0].size, 3);
  EXPECT_EQ(fc1.uneven_splits[0].parts, 4);
  EXPECT_FALSE(fc1.uneven_splits[0].equal);
  for (const int batch : {6, 8}) {
    const SmallSpace split(batch);
    EXPECT_TRUE(explanation_of(split, split.fc1).uneven_splits.empty());
  }
}

TEST(Explain, CountsAreThoseOfTheSpaces) {
  const SmallSpace ordered(8), full(8, ConfigSpace::kFull);
  const NodeExplanation fc1 = explanation_of(ordered, ordered.fc1);
  const NodeExplanation all = explanation_of(full, full.fc1);
  EXPECT_EQ(fc1.num_configs, fc1.num_without_budget);
  EXPECT_EQ(fc1.num_in_any_order, all.num_configs);
  EXPECT_GT(all.num_configs, fc1.num_configs);
  EXPECT_FALSE(fc1.max_runs.has_value());
}

TEST(Explain, PartsAndEvenCostsAreThoseOfAnEvenSplit) {
  const SmallSpace small(8), single(1);
  const NodeExplanation norm = explanation_of(small, small.norm);
  EXPECT_EQ(norm.parts, 4);
  EXPECT_EQ(norm.rule, "b0 _, _ -> b0 _");
  const NodeExplanation whole = explanation_of(single, single.norm);
  EXPECT_EQ(whole.parts, 1);
  EXPECT_DOUBLE_EQ(whole.even_memory_bytes, whole.memory_bytes / 4);
  const double launches_s = 2 * small.device.launch_overhead_s;
  EXPECT_NEAR(whole.even_time_s - launches_s, (whole.time_s - launches_s) / 4,
              1e-15);
  const NodeExplanation scale =
      explanation_of(single, single.producer(single.scale));
  EXPECT_EQ(scale.parts, 4);
  EXPECT_DOUBLE_EQ(scale.memory_bytes, scale.even_memory_bytes);
}

}  // namespace
}  // namespace tensoropt
