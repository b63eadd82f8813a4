// Parameters and inputs: in which layouts they come, and what they cost.

#include <gtest/gtest.h>

#include "common/check.h"
#include "space/small_space.h"

namespace tensoropt {
namespace {

using testing::SmallSpace;

const ConfigList& source(const SmallSpace& small, ValueId value) {
  const int index = small.space->node_of(small.producer(value));
  return *small.space->nodes()[index].configs;
}

TEST(Sources, PinnedParametersHaveOneLayout) {
  const SmallSpace small(
      SpaceOptions{.storage = {{"w1", Layout::parse("S0,R")}}});
  const ConfigList& pinned = source(small, small.w1);
  ASSERT_EQ(pinned.configs.size(), 1);
  EXPECT_EQ(pinned.configs[0].label, "S0,R");
  EXPECT_GT(source(small, small.w2).configs.size(), 1);
  const SmallSpace any;
  const ConfigList& free = source(any, any.w1);
  for (std::size_t c = 0; c < free.configs.size(); ++c) {
    if (free.configs[c].label == "S0,R") {
      EXPECT_EQ(free.costs[c].memory_bytes, pinned.costs[0].memory_bytes);
    }
  }
}

TEST(Sources, PinsThatCannotBeAreRefused) {
  for (const char* layout : {"S0", "S0,P", "S2,R"}) {
    const SpaceOptions options{.storage = {{"scale", Layout::parse(layout)}}};
    EXPECT_THROW(SmallSpace{options}, UserError) << layout;
  }
}

TEST(Sources, SharedInputsAreSplitButForThoseNamed) {
  const SmallSpace shared(SpaceOptions{.sharded_inputs = true});
  EXPECT_EQ(source(shared, shared.x).configs[0].label, "S0,S0");
  const SmallSpace whole(
      SpaceOptions{.sharded_inputs = true, .whole_inputs = {"x"}});
  EXPECT_EQ(source(whole, whole.x).configs[0].label, "R,R");
  EXPECT_THROW(SmallSpace(SpaceOptions{.sharded_inputs = true}, 6), UserError);
  EXPECT_NO_THROW(SmallSpace(
      SpaceOptions{.sharded_inputs = true, .whole_inputs = {"x"}}, 6));
}

TEST(Sources, GradientsOfInputsHaveNoState) {
  const SmallSpace without(SpaceOptions{}), with(SpaceOptions{}, 8, true);
  EXPECT_FALSE(without.graph.value(without.x).requires_grad);
  EXPECT_TRUE(with.graph.value(with.x).requires_grad);
  EXPECT_EQ(source(with, with.x).costs[0].memory_bytes,
            source(without, without.x).costs[0].memory_bytes);
  EXPECT_EQ(source(with, with.x).costs[0].time_s, 0);
}

}  // namespace
}  // namespace tensoropt
