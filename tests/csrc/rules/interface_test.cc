// What follows from a config: hand-checked for linear and for small rules.

#include <gtest/gtest.h>

#include <random>

#include "rules/config.h"
#include "rules/registry.h"

namespace tensoropt {
namespace {

// y = linear(x, w, bias) with x [8, 4], w [6, 4].
struct LinearGraph {
  Graph graph;
  NodeId node;

  LinearGraph() {
    const ValueId x = parameter("x", {8, 4});
    const ValueId w = parameter("w", {6, 4});
    const ValueId bias = parameter("bias", {6});
    node = graph.add_op("fc", "aten.linear.default",
                        {{"input", ValueRef{x}},
                         {"weight", ValueRef{w}},
                         {"bias", ValueRef{bias}}},
                        {{{8, 6}, DType::kFloat32}});
  }

  ValueId parameter(const char* name, Shape shape) {
    return graph.add_source(NodeKind::kParameter, name,
                            {std::move(shape), DType::kFloat32});
  }
  Rule rule() const {
    return rule_of(builtin_registry(), graph, graph.node(node));
  }
};

// "value/gradient" of all operands, then of all outputs.
std::vector<std::string> ports(const OpInterface& interface) {
  std::vector<std::string> texts;
  for (const auto* list : {&interface.operands, &interface.outputs}) {
    for (const Port& port : *list) {
      texts.push_back(port.value.to_string() + "/" + port.gradient.to_string());
    }
  }
  return texts;
}

std::vector<std::string> ports(const Rule& rule, const std::string& label,
                               const Mesh& mesh) {
  for (const OpConfig& config :
       enumerate_configs(rule, mesh, {ConfigSpace::kFull})) {
    if (to_string(rule, config) == label) {
      return ports(interface_of(rule, config));
    }
  }
  ADD_FAILURE() << "no config " << label;
  return {};
}

using Texts = std::vector<std::string>;

TEST(Interface, OfLinearOnOneAxis) {
  const Rule rule = LinearGraph().rule();
  const Mesh mesh({{2, 0}});
  //                                         x        w        bias     y
  EXPECT_EQ(ports(rule, "b0", mesh), (Texts{"S0/S0", "R/P", "R/P", "S0/S0"}));
  EXPECT_EQ(ports(rule, "n", mesh), (Texts{"R/P", "S0/S0", "S0/S0", "S1/S1"}));
  // The bias is added once: a pending sum, whose gradient is whole.
  EXPECT_EQ(ports(rule, "k", mesh), (Texts{"S1/S1", "S1/S1", "P/R", "P/R"}));
  EXPECT_EQ(ports(rule, "-", mesh), (Texts{"R/R", "R/R", "R/R", "R/R"}));
}

TEST(Interface, OfLinearOnTwoAxes) {
  const Rule rule = LinearGraph().rule();
  const Mesh mesh({{2, 0}, {2, 0}});
  EXPECT_EQ(ports(rule, "b0,k", mesh),
            (Texts{"S0,S1/S0,S1", "R,S1/P,S1", "R,P/P,R", "S0,P/S0,R"}));
  EXPECT_EQ(ports(rule, "b0,b0", mesh),
            (Texts{"S0,S0/S0,S0", "R,R/P,P", "R,R/P,P", "S0,S0/S0,S0"}));
}

// out[i] = sum over k of a[i, k] b[k], times c, linear in a and in c.
Rule small_rule(FactorKind kind) {
  Rule rule;
  rule.factors = {{"i", 4}, {"k", 4, kind}};
  rule.operands = {{{0, 1}}, {{1}}, {{}}};
  rule.outputs = {{{0}}};
  rule.linear_sets = {{0}, {2}};
  return rule;
}

TEST(Interface, OfLinearSets) {
  const Rule rule = small_rule(FactorKind::kDefault);
  const Mesh mesh({{2, 0}});
  EXPECT_EQ(ports(rule, "+0", mesh), (Texts{"P/R", "R/P", "R/P", "P/R"}));
  EXPECT_EQ(ports(rule, "+2", mesh), (Texts{"R/P", "R/P", "P/R", "P/R"}));
  EXPECT_EQ(ports(rule, "k", mesh), (Texts{"S1/S1", "S0/S0", "R/P", "P/R"}));
}

TEST(Interface, CombinedReductionLeavesTheWholeOutput) {
  const Rule rule = small_rule(FactorKind::kCombined);
  EXPECT_EQ(ports(rule, "k", Mesh({{2, 0}})),
            (Texts{"S1/S1", "S0/S0", "R/P", "R/R"}));
}

TEST(Interface, EveryAxisActsForItself) {
  const Mesh mesh({{2, 0}, {2, 0}, {2, 1}});
  const Rule rule = LinearGraph().rule();
  for (const OpConfig& config :
       enumerate_configs(rule, mesh, {ConfigSpace::kFull})) {
    SCOPED_TRACE(to_string(rule, config));
    const OpInterface all = interface_of(rule, config);
    for (int axis = 0; axis < 3; ++axis) {
      const OpInterface one = interface_of(rule, {config[axis]});
      for (std::size_t i = 0; i < all.operands.size(); ++i) {
        EXPECT_EQ(all.operands[i].value[axis], one.operands[i].value[0]);
        EXPECT_EQ(all.operands[i].gradient[axis], one.operands[i].gradient[0]);
      }
      EXPECT_EQ(all.outputs[0].value[axis], one.outputs[0].value[0]);
      EXPECT_EQ(all.outputs[0].gradient[axis], one.outputs[0].gradient[0]);
    }
  }
}

TEST(Rule, OfLinearCountsFlopsAndWhatIsSaved) {
  const Rule rule = LinearGraph().rule();
  EXPECT_EQ(rule.forward_flops, 2 * 8 * 6 * 4);
  EXPECT_EQ(rule.backward_flops, 2 * rule.forward_flops);
  EXPECT_TRUE(rule.operands[0].saved && rule.operands[1].saved);
  EXPECT_FALSE(rule.operands[2].saved || rule.outputs[0].saved);
}

TEST(Rule, OfFrozenInputSavesAndCostsLess) {
  LinearGraph linear;
  Graph& graph = linear.graph;
  const ValueId x =
      graph.add_source(NodeKind::kInput, "input", {{8, 4}, DType::kFloat32});
  const NodeId node = graph.add_op("first", "aten.linear.default",
                                   {{"input", ValueRef{x}},
                                    {"weight", ValueRef{ValueId(1)}},
                                    {"bias", Literal{}}},
                                   {{{8, 6}, DType::kFloat32}});
  const Rule rule = rule_of(builtin_registry(), graph, graph.node(node));
  EXPECT_EQ(rule.backward_flops, rule.forward_flops);
  EXPECT_TRUE(rule.operands[0].saved);
  EXPECT_FALSE(rule.operands[1].saved);
}

// x [t, k], w [e, k, n] -> [t, n]: rows of x go through one matrix each.
TEST(Interface, JointFactorsSplitWhateverHasOneOfTheirs) {
  Rule rule;
  rule.factors = {{"t", 8}, {"e", 4}};
  rule.factors.push_back({"te", 4});
  rule.factors.back().joint = {0, 1};
  rule.operands = {
      {{0, kNoFactor}}, {{1, kNoFactor, kNoFactor}}, {{kNoFactor}}};
  rule.outputs = {{{0, kNoFactor}}};
  const Mesh mesh({{2, 0}, {2, 1}});
  EXPECT_EQ(ports(rule, "te,-", mesh),
            (std::vector<std::string>{"S0,R/S0,R", "S0,R/S0,R", "R,R/P,R",
                                      "S0,R/S0,R"}));
  EXPECT_EQ(ports(rule, "t,te", mesh),
            (std::vector<std::string>{"S0,S0/S0,S0", "R,S0/P,S0", "R,R/P,P",
                                      "S0,S0/S0,S0"}));
  EXPECT_EQ(ports(rule, "e,te", mesh),
            (std::vector<std::string>{"R,S0/P,S0", "S0,S0/S0,S0", "R,R/P,P",
                                      "P,S0/R,S0"}));
}

}  // namespace
}  // namespace tensoropt
