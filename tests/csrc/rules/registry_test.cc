#include "rules/registry.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/check.h"
#include "rules/builder.h"
#include "rules/config.h"

namespace tensoropt {
namespace {

TensorMeta floats(Shape shape) { return {std::move(shape), DType::kFloat32}; }

// out = target(a, b)
struct BinaryGraph {
  Graph graph;
  NodeId node;

  BinaryGraph(const std::string& target, Shape a, Shape b, Shape out) {
    const ValueId left =
        graph.add_source(NodeKind::kParameter, "a", floats(std::move(a)));
    const ValueId right =
        graph.add_source(NodeKind::kInput, "b", floats(std::move(b)));
    node = graph.add_op("op", target,
                        {{"self", ValueRef{left}}, {"other", ValueRef{right}}},
                        {floats(std::move(out))});
  }
  const Node& op() const { return graph.node(node); }
};

TEST(Registry, OperatorWithoutARuleRunsWhole) {
  const BinaryGraph binary("my.op.default", {4}, {4}, {4});
  const Rule rule = rule_of(builtin_registry(), binary.graph, binary.op());
  EXPECT_TRUE(rule.factors.empty());
  EXPECT_TRUE(rule.linear_sets.empty());
  EXPECT_TRUE(rule.operands[0].saved);   // it may be: it requires a gradient
  EXPECT_FALSE(rule.operands[1].saved);  // an input does not
  const auto configs =
      enumerate_configs(rule, Mesh({{2, 0}}), {ConfigSpace::kFull});
  EXPECT_EQ(configs.size(), 1);
}

TEST(Registry, EmptyTensorsFitTheirRules) {
  const BinaryGraph binary("aten.add.Tensor", {4, 0}, {4, 0}, {4, 0});
  const Rule rule = rule_of(builtin_registry(), binary.graph, binary.op());
  EXPECT_EQ(rule.factors[0].size, 4);
  EXPECT_EQ(rule.factors[1].size, 1);  // never split
}

TEST(Registry, TargetsAreSortedAndFound) {
  const std::vector<std::string> targets = builtin_registry().targets();
  EXPECT_TRUE(std::is_sorted(targets.begin(), targets.end()));
  for (const std::string& target : targets) {
    EXPECT_NE(builtin_registry().find(target), nullptr) << target;
  }
  EXPECT_EQ(builtin_registry().find("my.op.default"), nullptr);
}

TEST(Registry, RefusesASecondRule) {
  Registry registry;
  registry.add("my.op.default", {});
  EXPECT_THROW(registry.add("my.op.default", {}), InternalError);
}

TEST(Registry, RuleThatDoesNotFitTheShapesIsABug) {
  Registry registry;
  registry.add("my.op.default", {[](const Graph& graph, const Node& node) {
                                   RuleBuilder rule(graph, node);
                                   rule.bind_operand(0, 0, rule.factor("i", 3));
                                   return rule.take();
                                 },
                                 {}});
  const BinaryGraph fits("my.op.default", {6}, {4}, {4});
  EXPECT_NO_THROW(rule_of(registry, fits.graph, fits.op()));
  const BinaryGraph wrong("my.op.default", {4}, {4}, {4});
  EXPECT_THROW(rule_of(registry, wrong.graph, wrong.op()), InternalError);
}

TEST(Registry, CallWithoutALocalFormIsTheSameOnShards) {
  const BinaryGraph binary("aten.mul.Tensor", {4}, {4}, {4});
  const Mesh mesh({{2, 0}});
  const LocalContext context{mesh, 1, {1}, {{2}}};
  const LocalForm form =
      local_form_of(builtin_registry(), binary.graph, binary.op(), context);
  EXPECT_TRUE(form.target.empty());
  EXPECT_TRUE(form.arguments.empty() && form.extra.empty());
  EXPECT_EQ(form.scale, 1);
}

TEST(RuleBuilder, BroadcastAlignsDimsAtTheRight) {
  const BinaryGraph binary("aten.mul.Tensor", {6, 1, 4}, {5, 4}, {6, 5, 4});
  RuleBuilder builder(binary.graph, binary.op());
  builder.broadcast();
  const Rule rule = builder.take();
  EXPECT_EQ(rule.outputs[0].dims, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(rule.operands[0].dims, (std::vector<int>{0, kNoFactor, 2}));
  EXPECT_EQ(rule.operands[1].dims, (std::vector<int>{1, 2}));
}

TEST(RuleBuilder, ProductSavesWhatTheOtherNeeds) {
  const BinaryGraph binary("aten.mul.Tensor", {4}, {4}, {4});
  RuleBuilder builder(binary.graph, binary.op());
  builder.save_product(0, 1);
  const Rule rule = builder.take();
  EXPECT_FALSE(rule.operands[0].saved);  // b is an input
  EXPECT_TRUE(rule.operands[1].saved);
}

TEST(NormalizeDim, CountsFromTheEndAndRefusesOthers) {
  EXPECT_EQ(normalize_dim(2, 3), 2);
  EXPECT_EQ(normalize_dim(-1, 3), 2);
  EXPECT_EQ(normalize_dim(-3, 3), 0);
  EXPECT_EQ(normalize_dim(0, 0), 0);
  EXPECT_THROW(normalize_dim(3, 3), InternalError);
  EXPECT_THROW(normalize_dim(-4, 3), InternalError);
}

}  // namespace
}  // namespace tensoropt
