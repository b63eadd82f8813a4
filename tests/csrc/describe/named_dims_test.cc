#include "describe/named_dims.h"

#include <gtest/gtest.h>

#include "space/small_space.h"

namespace tensoropt::testing {
namespace {

TEST(NamedDims, AreTheBatchAndTheSizesThatCanBeSplit) {
  const SmallSpace small;
  const NamedDims dims(*small.space);
  ASSERT_EQ(dims.num_names(), 3);
  EXPECT_EQ(dims.size(NamedDims::kBatch), 8);
  EXPECT_EQ(dims.size(1), 16);
  EXPECT_EQ(dims.size(2), 32);
}

TEST(NamedDims, BatchIsFollowedThroughOperators) {
  const SmallSpace small;
  const NamedDims dims(*small.space);
  const ValueId out = small.graph.node(small.fc2).outputs[0];
  EXPECT_EQ(dims.of(small.x, 0).name, NamedDims::kBatch);
  EXPECT_EQ(dims.of(out, 0).name, NamedDims::kBatch);
  EXPECT_EQ(dims.of_factor(small.graph.node(small.norm), 0).name,
            NamedDims::kBatch);
}

TEST(NamedDims, ClassesOfEqualSizeShareAName) {
  const SmallSpace small;
  const NamedDims dims(*small.space);
  const ValueId out = small.graph.node(small.fc2).outputs[0];
  const DimClasses& classes = small.space->model().dim_classes();
  EXPECT_NE(classes.of(small.x, 1), classes.of(out, 1));
  EXPECT_EQ(dims.of(small.x, 1).name, dims.of(out, 1).name);
  EXPECT_NE(dims.of(small.w1, 0).name, dims.of(small.w1, 1).name);
}

TEST(NamedDims, ADimOfTheBatchSizeIsNotTheBatch) {
  const SmallSpace small(/*batch=*/16);
  const NamedDims dims(*small.space);
  EXPECT_EQ(dims.num_names(), 3);
  EXPECT_NE(dims.of(small.x, 1).name, NamedDims::kBatch);
}

TEST(NamedDims, KnowWhatWeightsHaveAndNormsKeepWhole) {
  const SmallSpace small;
  const NamedDims dims(*small.space);
  const ValueId inner = small.graph.node(small.fc1).outputs[0];
  EXPECT_TRUE(dims.of(inner, 1).of_weight);
  EXPECT_FALSE(dims.of(inner, 0).of_weight);
  EXPECT_TRUE(dims.of(inner, 1).kept_whole);
  EXPECT_FALSE(dims.of(small.x, 1).kept_whole);
}

}  // namespace
}  // namespace tensoropt::testing
