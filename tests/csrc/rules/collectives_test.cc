// The collectives that rules declare are those that the operators run; the
// tests of the operators count them on processes.
#include <gtest/gtest.h>

#include "rules/notation.h"
#include "rules/registry.h"

namespace tensoropt {
namespace {

constexpr std::int64_t kSteps = 5, kBatch = 6, kFeatures = 3, kUnits = 8;

// How often a collective runs, and the bytes of all its runs together.
struct Total {
  double times = 0;
  double bytes = 0;
};

Total total(const Rule& rule, Collective kind, Pass pass) {
  Total result;
  for (const InnerCollective& inner : rule.collectives) {
    if (inner.kind != kind || inner.pass != pass) continue;
    result.times += inner.times;
    result.bytes += inner.times * inner.bytes;
  }
  return result;
}

Rule recurrent_rule(const std::string& target, std::int64_t gates,
                    int num_states) {
  Graph graph;
  const auto source = [&](std::vector<std::int64_t> shape) {
    return ValueRef{graph.add_source(NodeKind::kParameter, "p",
                                     {std::move(shape), DType::kFloat32})};
  };
  const ValueRef input = source({kSteps, kBatch, kFeatures});
  std::vector<ValueRef> states;
  std::vector<TensorMeta> outputs{{{kSteps, kBatch, kUnits}, DType::kFloat32}};
  for (int i = 0; i < num_states; ++i) {
    states.push_back(source({1, kBatch, kUnits}));
    outputs.push_back({{1, kBatch, kUnits}, DType::kFloat32});
  }
  std::vector<NamedArgument> arguments{{"input", input}, {"h", states[0]}};
  if (num_states == 2) arguments.push_back({"c", states[1]});
  arguments.push_back({"w_ih", source({gates, kUnits, kFeatures})});
  arguments.push_back({"w_hh", source({gates, kUnits, kUnits})});
  const NodeId node = graph.add_op("rnn", target, arguments, outputs);
  return rule_of(builtin_registry(), graph, graph.node(node));
}

TEST(InnerCollectives, OfAnLstmExchangeStatesInEveryStep) {
  const Rule rule = recurrent_rule("tensoropt.lstm.default", 4, 2);
  constexpr double kStates = kBatch * kUnits * 4;  // bytes of one step
  const Total gathered = total(rule, Collective::kAllGather, Pass::kForward);
  EXPECT_EQ(gathered.times, kSteps);
  EXPECT_EQ(gathered.bytes, kSteps * kStates);
  const Total reduced =
      total(rule, Collective::kReduceScatter, Pass::kBackward);
  EXPECT_EQ(reduced.times, kSteps);
  EXPECT_EQ(reduced.bytes, kSteps * kStates);
  const Total once = total(rule, Collective::kAllGather, Pass::kBackward);
  EXPECT_EQ(once.times, 1);
  EXPECT_EQ(once.bytes, kSteps * kStates);
}

TEST(InnerCollectives, OfRecurrentLayersRunOverTheUnitsOnly) {
  for (const Rule& rule : {recurrent_rule("tensoropt.lstm.default", 4, 2),
                           recurrent_rule("tensoropt.gru.default", 3, 1)}) {
    for (const InnerCollective& inner : rule.collectives) {
      ASSERT_EQ(inner.over.size(), 1U);
      EXPECT_EQ(rule.factors[inner.over[0]].name, "h");
      EXPECT_EQ(rule.factors[inner.divided_by[0]].name, "b");
    }
  }
}

Rule loss_rule(std::int64_t reduction, DType target) {
  Graph graph;
  const ValueId logits = graph.add_source(NodeKind::kParameter, "logits",
                                          {{12, 32}, DType::kBFloat16});
  const bool index = !is_floating_point(target);
  const ValueId wanted = graph.add_source(
      NodeKind::kInput, "target", {index ? Shape{12} : Shape{12, 32}, target});
  const NodeId node = graph.add_op("loss", "aten.cross_entropy_loss.default",
                                   {{"self", ValueRef{logits}},
                                    {"target", ValueRef{wanted}},
                                    {"reduction", Literal(reduction)}},
                                   {{{}, DType::kBFloat16}});
  return rule_of(builtin_registry(), graph, graph.node(node));
}

TEST(InnerCollectives, OfCrossEntropyAreTheCountAndTheReductionsOverClasses) {
  constexpr std::int64_t kMean = 1, kSum = 2;
  const Rule mean = loss_rule(kMean, DType::kInt64);
  const Total all = total(mean, Collective::kAllReduce, Pass::kForward);
  EXPECT_EQ(all.times, 3);
  EXPECT_EQ(all.bytes, 16 + 3 * 12 * 4);  // float32, though logits are bfloat16
  EXPECT_EQ(mean.factors[mean.collectives[0].over[0]].name, "t0");
  EXPECT_EQ(mean.factors[mean.collectives[1].over[0]].name, "c");
  const Rule sum = loss_rule(kSum, DType::kInt64);
  EXPECT_EQ(total(sum, Collective::kAllReduce, Pass::kForward).times, 2);
  EXPECT_TRUE(loss_rule(kMean, DType::kFloat32).collectives.empty());
}

TEST(InnerCollectives, OfRoutedExpertsSendEveryChoiceThereAndBack) {
  constexpr std::int64_t kTokens = 12, kChosen = 2, kExperts = 4, kModel = 6,
                         kInner = 10;
  Graph graph;
  const auto source = [&](std::vector<std::int64_t> shape) {
    return ValueRef{graph.add_source(NodeKind::kParameter, "p",
                                     {std::move(shape), DType::kFloat32})};
  };
  const NodeId node =
      graph.add_op("experts", "tensoropt.routed_experts.default",
                   {{"x", source({kTokens, kModel})},
                    {"experts", source({kTokens, kChosen})},
                    {"weights", source({kTokens, kChosen})},
                    {"up", source({kExperts, kModel, 2 * kInner})},
                    {"down", source({kExperts, kInner, kModel})},
                    {"product", Literal(std::string("mylib::product"))},
                    {"activation", Literal(std::string("silu"))},
                    {"gated", Literal(true)}},
                   {{{kTokens, kModel}, DType::kFloat32}});
  const Rule rule = rule_of(builtin_registry(), graph, graph.node(node));
  EXPECT_EQ(to_string(rule), "t _, t _, t _, e _ f, e f _ -> t _; te: t e");
  constexpr double kRows = kTokens * kChosen * kModel * 4;
  constexpr double kHidden = kTokens * kChosen * 2 * kInner * 4;
  const Total forward = total(rule, Collective::kAllToAll, Pass::kForward);
  EXPECT_EQ(forward.times, 1 + 2 + 1);  // counts, rows, gates
  EXPECT_EQ(forward.bytes, 8 * kExperts + 2 * kRows + kHidden);
  const Total backward = total(rule, Collective::kAllToAll, Pass::kBackward);
  EXPECT_EQ(backward.times, 2 + 1);
  EXPECT_EQ(backward.bytes, 2 * kRows + kHidden);
}

}  // namespace
}  // namespace tensoropt
