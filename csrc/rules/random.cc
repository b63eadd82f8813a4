// Operators that draw random numbers for the elements of a tensor: the same
// ones wherever ranks have the same shard, different ones elsewhere.

#include <algorithm>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// Draws for the dims that are not `fixed`.
RuleBuilder drawing(const Graph& graph, const Node& node,
                    const std::vector<bool>& fixed) {
  RuleBuilder rule(graph, node);
  rule.keep_dims(fixed);
  rule.flops(rule.output_elements(), rule.output_elements());
  return rule;
}

// The whole tensor gives one mask for each of these factors' indices.
void save_mask(RuleBuilder& rule, const Graph& graph, const Node& node,
               double bytes) {
  if (!graph.output(node, 0).requires_grad) return;
  std::vector<int> factors;
  for (std::size_t dim = 0; dim < rule.output_shape(0).size(); ++dim) {
    const int factor = rule.output_factor(static_cast<int>(dim));
    if (factor != kNoFactor) factors.push_back(factor);
  }
  rule.saves_extra(bytes, factors);
}

std::size_t rank_of(const Graph& graph, const Node& node) {
  return graph.operand(node, 0).meta.shape.size();
}

// The mask is the same wherever the value is replicated or a pending sum.
Rule dropout_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule =
      drawing(graph, node, std::vector<bool>(rank_of(graph, node), false));
  rule.linear_in({0});
  if (!node.bool_argument("train", true)) return rule.take();
  save_mask(rule, graph, node, rule.output_elements());
  rule.random();
  return rule.take();
}

// Gives the mask as well, which is no sum.
Rule native_dropout_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule =
      drawing(graph, node, std::vector<bool>(rank_of(graph, node), false));
  if (graph.output(node, 0).requires_grad) rule.save_output(1);
  rule.random();
  return rule.take();
}

// Drops whole channels [n, c]: what comes after them shares the mask. Where
// dropped numbers become a constant (alpha) pending sums cannot pass.
Rule feature_dropout_rule(const Graph& graph, const Node& node, bool alpha) {
  constexpr double kNoiseBytes = 4;
  const Shape& shape = graph.operand(node, 0).meta.shape;
  std::vector<bool> fixed(shape.size(), true);
  double channels = 1;
  for (std::size_t dim = 0; dim < std::min<std::size_t>(2, shape.size());
       ++dim) {
    fixed[dim] = false;
    channels *= static_cast<double>(shape[dim]);
  }
  RuleBuilder rule = drawing(graph, node, fixed);
  if (!alpha) rule.linear_in({0});
  if (!node.bool_argument("train", true)) return rule.take();
  save_mask(rule, graph, node, kNoiseBytes * channels);
  rule.random();
  return rule.take();
}

// A number for each element, whatever it is computed with.
Rule elementwise_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule =
      drawing(graph, node, std::vector<bool>(rank_of(graph, node), false));
  save_mask(rule, graph, node, graph.operand(node, 0).meta.num_bytes());
  rule.random();
  return rule.take();
}

// Numbers that do not depend on the operand, which gives only the shape.
Rule like_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule =
      drawing(graph, node, std::vector<bool>(rank_of(graph, node), false));
  rule.random();
  return rule.take();
}

// A probability for each element, or one that several of them share.
Rule probabilities_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.broadcast();
  rule.flops(rule.output_elements(), 0);
  rule.random();
  return rule.take();
}

// Draws from the last dim of [n, c].
Rule multinomial_rule(const Graph& graph, const Node& node) {
  std::vector<bool> fixed(rank_of(graph, node), false);
  fixed.back() = true;
  RuleBuilder rule = drawing(graph, node, fixed);
  rule.random();
  return rule.take();
}

}  // namespace

void register_random(Registry& registry) {
  registry.add("aten.dropout.default", {dropout_rule, {}});
  registry.add("aten.native_dropout.default", {native_dropout_rule, {}});
  for (const bool alpha : {false, true}) {
    registry.add(alpha ? "aten.feature_alpha_dropout.default"
                       : "aten.feature_dropout.default",
                 {[alpha](const Graph& graph, const Node& node) {
                    return feature_dropout_rule(graph, node, alpha);
                  },
                  {}});
  }
  for (const char* target :
       {"alpha_dropout.default", "rrelu.default", "bernoulli.default"}) {
    registry.add(str_format("aten.{}", target), {elementwise_rule, {}});
  }
  for (const char* target :
       {"rand_like.default", "randn_like.default", "randint_like.default",
        "randint_like.low_dtype", "bernoulli.p", "exponential.default",
        "uniform.default", "normal_functional.default", "random.default",
        "random.to", "random.from", "geometric.default", "cauchy.default",
        "log_normal.default"}) {
    registry.add(str_format("aten.{}", target), {like_rule, {}});
  }
  registry.add("aten.bernoulli.Tensor", {probabilities_rule, {}});
  registry.add("aten.multinomial.default", {multinomial_rule, {}});
}

}  // namespace tensoropt
