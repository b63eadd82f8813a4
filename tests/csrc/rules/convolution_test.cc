// What rules say about convolutions and what goes with them: work and
// saved tensors, which running them does not show.
#include <gtest/gtest.h>

#include "rules/config.h"
#include "rules/registry.h"

namespace tensoropt {
namespace {

TensorMeta floats(Shape shape) { return {std::move(shape), DType::kFloat32}; }

// out = target(input, weight), with a trainable weight.
struct Call {
  Graph graph;
  NodeId node;

  Call(const std::string& target, NodeKind input, Shape x, Shape weight,
       Shape out, std::vector<NamedArgument> literals = {}) {
    std::vector<NamedArgument> arguments{
        {"input", ValueRef{graph.add_source(input, "x", floats(std::move(x)))}},
        {"weight", ValueRef{graph.add_source(NodeKind::kParameter, "w",
                                             floats(std::move(weight)))}}};
    arguments.insert(arguments.end(), literals.begin(), literals.end());
    node = graph.add_op("op", target, arguments, {floats(std::move(out))});
  }
  Rule rule() const {
    return rule_of(builtin_registry(), graph, graph.node(node));
  }
};

NamedArgument groups(std::int64_t count) { return {"groups", Literal(count)}; }

TEST(Convolution, CountsTheProductsOfEveryOutputElement) {
  const Rule rule = Call("aten.conv2d.default", NodeKind::kParameter,
                         {8, 6, 5, 5}, {12, 6, 3, 3}, {8, 12, 5, 5})
                        .rule();
  const double products = 8.0 * 12 * 25 * (6 * 9);
  EXPECT_EQ(rule.forward_flops, 2 * products);
  EXPECT_EQ(rule.backward_flops, 4 * products);  // of input and weight
  EXPECT_TRUE(rule.operands[0].saved);
  EXPECT_TRUE(rule.operands[1].saved);
}

TEST(Convolution, OfDataNeedsTheGradientOfTheWeightOnly) {
  const Rule rule = Call("aten.conv1d.default", NodeKind::kInput, {8, 6, 5},
                         {12, 6, 3}, {8, 12, 3})
                        .rule();
  EXPECT_EQ(rule.backward_flops, rule.forward_flops);
  EXPECT_TRUE(rule.operands[0].saved);
  EXPECT_FALSE(rule.operands[1].saved);
}

TEST(Convolution, GroupsAreSplitWhole) {
  const Rule rule =
      Call("aten.conv2d.default", NodeKind::kParameter, {8, 12, 5, 5},
           {24, 2, 3, 3}, {8, 24, 5, 5}, {groups(6)})
          .rule();
  EXPECT_EQ(rule.forward_flops, 2.0 * (8 * 24 * 25) * (2 * 9));
  // On 12 devices the 6 groups cannot be split, though 12 and 24 channels
  // could.
  const Mesh mesh({{3, 0}, {4, 0}});
  for (const OpConfig& config :
       enumerate_configs(rule, mesh, {ConfigSpace::kFull})) {
    EXPECT_NE(to_string(rule, config), "g,g");
  }
}

TEST(Convolution, TransposedCountsTheProductsOfEveryInputElement) {
  const Rule rule = Call("aten.conv_transpose2d.input", NodeKind::kParameter,
                         {8, 6, 5, 5}, {6, 12, 2, 2}, {8, 12, 10, 10})
                        .rule();
  EXPECT_EQ(rule.forward_flops, 2.0 * (8 * 6 * 25) * (12 * 4));
}

TEST(BatchNorm, OfASplitBatchHasPartialGradientsOfTheWeightOnly) {
  const Call call("aten.batch_norm.default", NodeKind::kParameter, {8, 6, 5, 5},
                  {6}, {8, 6, 5, 5}, {{"training", Literal(true)}});
  const Rule rule = call.rule();
  EXPECT_TRUE(rule.operands[0].saved);
  const OpInterface split = interface_of(rule, {AxisUse::factor(0)});
  EXPECT_EQ(split.operands[0].gradient.to_string(), "S0");
  EXPECT_EQ(split.operands[1].value.to_string(), "R");
  EXPECT_EQ(split.operands[1].gradient.to_string(), "P");
  EXPECT_EQ(split.outputs[0].value.to_string(), "S0");
}

TEST(Pooling, MaximaKeepWhereTheyWere) {
  const auto pooled = [](const std::string& target, Shape out) {
    Graph graph;
    const ValueId x =
        graph.add_source(NodeKind::kParameter, "x", floats({8, 6, 4, 4}));
    const NodeId node = graph.add_op("op", target, {{"self", ValueRef{x}}},
                                     {floats(std::move(out))});
    return rule_of(builtin_registry(), graph, graph.node(node));
  };
  const Rule maximum = pooled("aten.max_pool2d.default", {8, 6, 2, 2});
  ASSERT_EQ(maximum.extra_saved.size(), 1);
  EXPECT_EQ(maximum.extra_saved[0].bytes, 8.0 * (8 * 6 * 4));
  EXPECT_TRUE(
      pooled("aten.avg_pool2d.default", {8, 6, 2, 2}).extra_saved.empty());
  const std::string adaptive = "aten.adaptive_avg_pool2d.default";
  EXPECT_TRUE(pooled(adaptive, {8, 6, 2, 2}).operands[0].saved);
  EXPECT_FALSE(pooled(adaptive, {8, 6, 1, 1}).operands[0].saved);  // a mean
}

}  // namespace
}  // namespace tensoropt
