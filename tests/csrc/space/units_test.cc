#include "space/units.h"

#include <gtest/gtest.h>

#include "space/space.h"

namespace tensoropt {
namespace {

// loss = sum(relu(linear(view(x [rows, 4, 6], [rows * 4, 6]))) + shift), on
// four devices; `shift` [rows * 4, 1] only if a parameter is asked for.
struct Rows {
  explicit Rows(std::int64_t rows, bool parameter = false) {
    const std::int64_t all = rows * 4;
    x = graph.add_source(NodeKind::kInput, "x", {{rows, 4, 6}});
    const ValueId w = graph.add_source(NodeKind::kParameter, "w", {{8, 6}});
    flat = add("view", "aten.view.default",
               {{"self", ValueRef{x}}, {"size", Literal{Shape{all, 6}}}},
               {all, 6});
    const ValueId y =
        add("linear", "aten.linear.default",
            {{"input", ValueRef{flat}}, {"weight", ValueRef{w}}}, {all, 8});
    ValueId last =
        add("relu", "aten.relu.default", {{"self", ValueRef{y}}}, {all, 8});
    if (parameter) {
      const ValueId shift =
          graph.add_source(NodeKind::kParameter, "shift", {{all, 1}});
      last =
          add("add", "aten.add.Tensor",
              {{"self", ValueRef{last}}, {"other", ValueRef{shift}}}, {all, 8});
    }
    graph.set_outputs(
        {add("sum", "aten.sum.default", {{"self", ValueRef{last}}}, {})});
  }

  ValueId add(const std::string& name, const std::string& target,
              std::vector<NamedArgument> arguments, Shape shape) {
    const NodeId node =
        graph.add_op(name, target, std::move(arguments), {{std::move(shape)}});
    return graph.node(node).outputs[0];
  }

  StrategySpace space(bool sharded_inputs = false) const {
    return {graph, builtin_registry(), Machine{mesh, device, collectives},
            SpaceOptions{.sharded_inputs = sharded_inputs}};
  }
  Shape flat_units(bool sharded_inputs = false) const {
    return space(sharded_inputs).graph().value(flat).meta.units;
  }

  Graph graph;
  ValueId x, flat;
  Mesh mesh{{{2, 0}, {2, 0}}};
  Device device;
  Cluster cluster{"four", device, {{"gpu", 4, 1e9, 1e-6}}};
  AnalyticCollectives collectives{cluster, mesh};
};

int config_with(const StrategySpace& space, NodeId node,
                const std::string& label) {
  const auto& configs = space.nodes()[space.node_of(node)].configs->configs;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    if (configs[i].label == label) return static_cast<int>(i);
  }
  return -1;
}

TEST(Units, RowsStayTogether) {
  const Rows rows(7);
  const StrategySpace space = rows.space();
  EXPECT_EQ(space.graph().value(rows.flat).meta.units, (Shape{4, 1}));
  EXPECT_TRUE(space.graph().value(rows.x).meta.units.empty());
  // 7 rows are 2, 2, 2 and 1 of 4 entries, for all operators alike.
  const TensorMeta& flat = space.graph().value(rows.flat).meta;
  const Layout split = Layout::parse("S0,S0");
  EXPECT_EQ(local_shape(flat, split, rows.mesh, 0), (Shape{8, 6}));
  EXPECT_EQ(local_shape(flat, split, rows.mesh, 3), (Shape{4, 6}));
  EXPECT_DOUBLE_EQ(local_bytes(flat, split, rows.mesh), 8 * 6 * 4);
  for (const Node& node : space.graph().nodes()) {
    if (node.kind != NodeKind::kOp) continue;
    const std::string batch = node.name == "linear" ? "b0" : "d0";
    EXPECT_GE(config_with(space, node.id, batch + "," + batch), 0) << node.name;
  }
  const NodeId linear = space.graph().value(rows.flat).uses[0].node;
  const int config = config_with(space, linear, "b0,b0");
  const OpConfig uses =
      space.nodes()[space.node_of(linear)].configs->configs[config].uses;
  EXPECT_EQ(space.model().local_call_of(linear, uses, 3).operands[0].meta.shape,
            (Shape{4, 6}));
}

TEST(Units, NoneWhereTheDevicesDivideOrSomeWouldHaveNothing) {
  EXPECT_TRUE(Rows(8).flat_units().empty());
  EXPECT_TRUE(Rows(3).flat_units().empty());  // 12 entries are 3 for each
  EXPECT_FALSE(Rows(5).flat_units().empty());
}

// A DTensor of 28 rows on 4 devices has 7 on each.
TEST(Units, EntriesOfParametersAreSingle) {
  EXPECT_TRUE(Rows(7, true).flat_units().empty());
}

// 96 and 99 entries are three of 32 and of 33, which nobody can split.
TEST(Units, NoneWhereAnOperatorCannotSplitTheDim) {
  Graph graph;
  const ValueId x = graph.add_source(NodeKind::kInput, "x", {{4, 16, 96}});
  const ValueId w = graph.add_source(NodeKind::kParameter, "w", {{16, 16, 4}});
  const auto add = [&](const std::string& name, const std::string& target,
                       std::vector<NamedArgument> arguments, Shape shape) {
    const NodeId node =
        graph.add_op(name, target, std::move(arguments), {{std::move(shape)}});
    return graph.node(node).outputs[0];
  };
  const ValueId before =
      add("relu", "aten.relu.default", {{"self", ValueRef{x}}}, {4, 16, 96});
  const ValueId made = add("conv", "aten.conv1d.default",
                           {{"input", ValueRef{before}},
                            {"weight", ValueRef{w}},
                            {"padding", Literal{Shape{3}}}},
                           {4, 16, 99});
  graph.set_outputs(
      {add("sum", "aten.sum.default", {{"self", ValueRef{made}}}, {})});
  const Mesh mesh{{{2, 0}}};
  const Device device;
  const Cluster cluster{"two", device, {{"gpu", 2, 1e9, 1e-6}}};
  const AnalyticCollectives collectives{cluster, mesh};
  const StrategySpace space{graph, builtin_registry(),
                            Machine{mesh, device, collectives}, SpaceOptions{}};
  EXPECT_TRUE(space.graph().value(before).meta.units.empty());
  EXPECT_TRUE(space.graph().value(made).meta.units.empty());
}

}  // namespace
}  // namespace tensoropt
