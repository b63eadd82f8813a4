// Idle dims: against chains walked by hand, and against a search of all ways
// from a dim to a heavy operator.

#include "space/idle_dims.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/str_format.h"

namespace tensoropt {
namespace {

// Operators over values of the same shape, with rules of their own: factor d
// is dim d of all operands and outputs, unless a rule says otherwise.
struct Model {
  Shape shape{8, 4};
  Graph graph;
  RulesByNode rules;

  ValueId input(const std::string& name) {
    const ValueId id = graph.add_source(NodeKind::kInput, name, {shape});
    rules.resize(graph.nodes().size());
    return id;
  }
  // `dims` by factor: the dim of operands that it is, of the output likewise.
  ValueId op(const std::string& name, std::vector<ValueId> operands,
             double flops, std::vector<int> operand_dims = {0, 1},
             std::vector<int> output_dims = {0, 1}) {
    std::vector<NamedArgument> arguments;
    Rule rule;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      arguments.push_back({str_format("x{}", i), ValueRef{operands[i]}});
      rule.operands.push_back({.dims = operand_dims});
    }
    const NodeId node = graph.add_op(name, str_format("test.{}", name),
                                     std::move(arguments), {{shape}});
    rule.factors = {{.name = "a", .size = 8}, {.name = "b", .size = 4}};
    rule.outputs = {{.dims = std::move(output_dims)}};
    rule.forward_flops = flops;
    rules.resize(graph.nodes().size());
    rules[node] = rule;
    return graph.node(node).outputs[0];
  }
  Rule& rule(ValueId value) { return rules[graph.value(value).producer]; }
  IdleDims idle() const {
    return {graph, rules, [](const Node&) { return -1; }};
  }
};

constexpr double kHeavy = 1e6;
constexpr double kLight = 1;

TEST(IdleDims, DimsThatReachNoHeavyOperatorAreIdle) {
  Model model;
  const ValueId x = model.input("x");
  const ValueId light = model.op("light", {x}, kLight);
  // Its second factor is of no dim: nothing else is split with it.
  const ValueId heavy =
      model.op("heavy", {light}, kHeavy, {0, kNoFactor}, {0, kNoFactor});
  const ValueId after = model.op("after", {heavy}, kLight);
  const IdleDims idle = model.idle();
  for (const ValueId value : {x, light, heavy, after}) {
    EXPECT_FALSE(idle.is_idle(value, 0));
    EXPECT_TRUE(idle.is_idle(value, 1));
    EXPECT_EQ(idle.splittable_shape(model.graph.value(value)), (Shape{8, 1}));
  }
}

TEST(IdleDims, RulesOfLightOperatorsLoseThemAndHeavyOnesDoNot) {
  Model model;
  const ValueId light = model.op("light", {model.input("x")}, kLight);
  const ValueId heavy =
      model.op("heavy", {light}, kHeavy, {0, kNoFactor}, {0, kNoFactor});
  const NodeId node = model.graph.value(light).producer;
  Exclusions left_out;
  RulesByNode rules = model.rules;
  model.idle().remove_from(rules, left_out);
  ASSERT_EQ(left_out.size(), 1u);
  EXPECT_EQ(left_out[0].node, node);
  EXPECT_EQ(left_out[0].reason, ExclusionReason::kIdleDim);
  EXPECT_EQ(left_out[0].factor, "b");
  EXPECT_EQ(rules[node].factors[0].size, 8);
  EXPECT_EQ(rules[node].factors[1].size, 1);
  EXPECT_EQ(rules[model.graph.value(heavy).producer], model.rule(heavy));
}

TEST(IdleDims, WithoutHeavyOperatorsNothingIsIdle) {
  Model model;
  const ValueId x = model.input("x");
  const ValueId light = model.op("light", {x}, kLight);
  for (const int dim : {0, 1}) EXPECT_FALSE(model.idle().is_idle(light, dim));
}

TEST(IdleDims, RowsOfInputsAreUseful) {
  Model model;
  const ValueId x = model.input("x");
  const ValueId light = model.op("light", {x}, kLight);
  const IdleDims idle(model.graph, model.rules, [](const Node& node) {
    return node.kind == NodeKind::kInput ? 1 : -1;
  });
  EXPECT_TRUE(idle.is_idle(light, 0));
  EXPECT_FALSE(idle.is_idle(light, 1));
}

TEST(IdleDims, PartsDifferOnlyWhereSomeHeavyOperatorAllowsIt) {
  for (const bool uneven : {false, true}) {
    Model model;
    const ValueId light = model.op("light", {model.input("x")}, kLight);
    const ValueId heavy = model.op("heavy", {light}, kHeavy);
    model.rule(heavy).factors[0].uneven = uneven;
    RulesByNode rules = model.rules;
    Exclusions left_out;
    model.idle().remove_from(rules, left_out);
    const Rule& rule = rules[model.graph.value(light).producer];
    EXPECT_EQ(rule.factors[0].uneven, uneven);
    EXPECT_TRUE(rule.factors[1].uneven);
    EXPECT_TRUE(left_out.empty());
  }
}

using Dim = std::pair<int, int>;  // value, dim

// The factor of each dim, so that factor and dim are joined.
std::vector<std::pair<Dim, int>> dims_of(const Node& node, const Rule& rule) {
  std::vector<std::pair<Dim, int>> dims;
  const auto add = [&](ValueId value, const std::vector<int>& factors) {
    for (int dim = 0; dim < 2; ++dim) {
      dims.push_back({{value, dim}, factors[dim]});
    }
  };
  for (std::size_t i = 0; i < node.operands.size(); ++i) {
    add(node.operands[i], rule.operands[i].dims);
  }
  add(node.outputs[0], rule.outputs[0].dims);
  return dims;
}

// All dims from which a walk over operators comes to a heavy one's factor.
std::set<Dim> useful_by_walks(const Model& model, const std::set<int>& heavy) {
  std::set<Dim> useful;
  for (bool grows = true; grows;) {
    grows = false;
    for (const Node& node : model.graph.nodes()) {
      if (node.kind != NodeKind::kOp) continue;
      const auto dims = dims_of(node, model.rules[node.id]);
      for (const auto& [dim, factor] : dims) {
        if (factor < 0) continue;
        bool reached = heavy.contains(node.id);
        for (const auto& [other, its] : dims) {
          reached = reached || (its == factor && useful.contains(other));
        }
        if (reached && useful.insert(dim).second) grows = true;
      }
    }
  }
  return useful;
}

TEST(IdleDims, AreThoseFromWhichNoWalkComesToAHeavyOperator) {
  const std::vector<std::vector<int>> bindings = {
      {0, 1}, {1, 0}, {0, kNoFactor}, {kNoFactor, 1}};
  int idle_dims = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 engine(seed);
    const auto roll = [&](std::size_t n) { return engine() % n; };
    Model model;
    model.shape = {8, 8};
    std::vector<ValueId> values{model.input("x"), model.input("y")};
    std::set<int> heavy;
    for (int i = 0; i < 6; ++i) {
      const bool is_heavy = roll(4) == 0;
      std::vector<ValueId> operands{values[roll(values.size())]};
      if (roll(2) == 0) operands.push_back(values[roll(values.size())]);
      values.push_back(model.op(str_format("op{}", i), operands,
                                is_heavy ? kHeavy : kLight, bindings[roll(4)],
                                bindings[roll(4)]));
      for (Factor& factor : model.rule(values.back()).factors) factor.size = 8;
      if (is_heavy) {
        heavy.insert(model.graph.value(values.back()).producer);
      }
    }
    const IdleDims idle = model.idle();
    const auto useful = useful_by_walks(model, heavy);
    for (const ValueId value : values) {
      for (int dim = 0; dim < 2; ++dim) {
        const bool expected =
            !heavy.empty() && !useful.contains({static_cast<int>(value), dim});
        EXPECT_EQ(idle.is_idle(value, dim), expected)
            << "value " << value << ", dim " << dim;
        idle_dims += expected ? 1 : 0;
      }
    }
  }
  EXPECT_GT(idle_dims, 100);
}

}  // namespace
}  // namespace tensoropt
