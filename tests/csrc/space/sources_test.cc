// Parameters and inputs: in which layouts they come, and what they cost.

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

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
      EXPECT_EQ(free.costs[c].state_bytes, pinned.costs[0].state_bytes);
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

TEST(Sources, RowsMayBeSharedOutAlongSomeAxes) {
  const auto label = [](std::optional<int> axes, int rows = 8) {
    const SmallSpace space(
        SpaceOptions{.sharded_inputs = true, .row_axes = axes}, rows);
    return source(space, space.x).configs[0].label;
  };
  EXPECT_EQ(label(std::nullopt), "S0,S0");
  EXPECT_EQ(label(2), "S0,S0");
  EXPECT_EQ(label(1), "S0,R");
  EXPECT_EQ(label(0), "R,R");
  EXPECT_EQ(label(1, 6), "S0,R");  // which 4 devices could not share
  EXPECT_THROW(label(3), UserError);
  EXPECT_THROW(label(1, 7), UserError);
}

TEST(Sources, RowsMayBeInAnyDim) {
  const SmallSpace named(
      SpaceOptions{.sharded_inputs = true, .input_dims = {{"x", 1}}});
  EXPECT_EQ(source(named, named.x).configs[0].label, "S1,S1");
  EXPECT_THROW(SmallSpace(SpaceOptions{.sharded_inputs = true,
                                       .input_dims = {{"x", 7}}}),
               UserError);
}

TEST(Sources, GradientsOfInputsHaveNoState) {
  const SmallSpace without(SpaceOptions{}), with(SpaceOptions{}, 8, true);
  EXPECT_FALSE(without.graph.value(without.x).requires_grad);
  EXPECT_TRUE(with.graph.value(with.x).requires_grad);
  EXPECT_EQ(source(with, with.x).costs[0].state_bytes,
            source(without, without.x).costs[0].state_bytes);
  EXPECT_EQ(source(with, with.x).costs[0].step_s, 0);
}

// y = x * table, and the table becomes y if `changes`.
struct TableSpace {
  explicit TableSpace(std::int64_t rows, bool changes = false,
                      SpaceOptions options = {}) {
    const TensorMeta meta{{rows, 1024}, DType::kFloat32};
    const ValueId x = graph.add_source(NodeKind::kInput, "x", meta);
    table = graph.add_source(NodeKind::kConstant, "table", meta);
    const NodeId product = graph.add_op(
        "product", "aten.mul.Tensor",
        {{"self", ValueRef{x}}, {"other", ValueRef{table}}}, {meta});
    const ValueId result = graph.node(product).outputs[0];
    if (changes) {
      graph.add_op("write", "aten.copy_.default",
                   {{"self", ValueRef{table}}, {"src", ValueRef{result}}},
                   {meta});
    }
    graph.set_outputs({result});
    space = std::make_unique<StrategySpace>(
        graph, builtin_registry(), Machine{mesh, device, collectives}, options);
  }
  std::size_t num_configs() const {
    const int index = space->node_of(graph.value(table).producer);
    return space->nodes()[index].configs->configs.size();
  }

  Graph graph;
  ValueId table;
  Mesh mesh{{{2, 0}, {2, 0}}};
  Device device;
  Cluster cluster{"four", device, {{"gpu", 4, 1e9, 1e-6}}};
  AnalyticCollectives collectives{cluster, mesh};
  std::unique_ptr<StrategySpace> space;
};

TEST(Sources, LargeConstantsMayBeCutUnlessTheyChange) {
  constexpr std::int64_t kRows = kLargeConstantBytes / (1024 * 4);
  EXPECT_EQ(TableSpace(kRows - 1).num_configs(), 1U);
  EXPECT_GT(TableSpace(kRows).num_configs(), 1U);
  EXPECT_EQ(TableSpace(kRows, true).num_configs(), 1U);
  const SpaceOptions cut{.storage = {{"table", Layout::parse("S0,R")}}};
  EXPECT_EQ(TableSpace(kRows, false, cut).num_configs(), 1U);
  EXPECT_THROW(TableSpace(kRows, true, cut), UserError);
}

// y = x + expand(row): parts of the repeated rows cost nothing, so that there
// is nothing to slice where y is split by rows. Parts of the row would be
// sliced.
TEST(Sources, WhatRepeatsAConstantIsSplitWhereItRepeats) {
  Graph graph;
  const TensorMeta meta{{64, 1024}, DType::kFloat32};
  const ValueId x = graph.add_source(NodeKind::kInput, "x", meta);
  const ValueId row = graph.add_source(NodeKind::kConstant, "row",
                                       {{1, 1024}, DType::kFloat32});
  const NodeId expand =
      graph.add_op("expand", "aten.expand.default",
                   {{"self", ValueRef{row}},
                    {"size", Literal{std::vector<std::int64_t>{64, 1024}}}},
                   {meta});
  const NodeId sum =
      graph.add_op("sum", "aten.add.Tensor",
                   {{"self", ValueRef{x}},
                    {"other", ValueRef{graph.node(expand).outputs[0]}}},
                   {meta});
  graph.set_outputs({graph.node(sum).outputs[0]});
  const Mesh mesh{{{2, 0}, {2, 0}}};
  const Device device;
  const Cluster cluster{"four", device, {{"gpu", 4, 1e9, 1e-6}}};
  const AnalyticCollectives collectives{cluster, mesh};
  const StrategySpace space(graph, builtin_registry(),
                            Machine{mesh, device, collectives}, {});
  std::vector<std::string> labels;
  for (const auto& config :
       space.nodes()[space.node_of(expand)].configs->configs) {
    labels.push_back(config.label);
  }
  EXPECT_EQ(labels, (std::vector<std::string>{"d0,d0", "d0,-", "-,-"}));
}

}  // namespace
}  // namespace tensoropt
