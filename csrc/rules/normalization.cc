// Normalisations over trailing dims, and softmax over one dim. The normalised
// dims are not split.

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// Elements per FLOP are rough: these operators are bound by memory.
constexpr double kNormFlopsPerElement = 8;

// One factor for each leading dim of input and output.
std::vector<int> bind_leading(RuleBuilder& rule, std::size_t count) {
  std::vector<int> factors;
  for (std::size_t dim = 0; dim < count; ++dim) {
    const int at = static_cast<int>(dim);
    factors.push_back(
        rule.factor(fmt::format("b{}", dim), rule.operand_shape(0)[dim]));
    rule.bind_operand(0, at, factors.back());
    rule.bind_output(0, at, factors.back());
  }
  return factors;
}

// Saves input and weight, and per normalised row `statistics` numbers.
Rule norm_rule(const Graph& graph, const Node& node, double statistics) {
  RuleBuilder rule(graph, node);
  const auto normalized = node.ints_argument("normalized_shape");
  const std::size_t leading = rule.operand_shape(0).size() - normalized.size();
  const std::vector<int> factors = bind_leading(rule, leading);
  double rows = 1;
  for (std::size_t dim = 0; dim < leading; ++dim) {
    rows *= static_cast<double>(rule.operand_shape(0)[dim]);
  }
  if (graph.output(node, 0).requires_grad) {
    rule.save_operand(0);
    if (node.operand_index("weight") >= 0) rule.save_operand(1);
    rule.saves_extra(statistics * rows * 4, factors);
  }
  const double flops = kNormFlopsPerElement * rule.output_elements();
  rule.flops(flops, 2 * flops);
  return rule.take();
}

Rule layer_norm_rule(const Graph& graph, const Node& node) {
  return norm_rule(graph, node, 2);
}

Rule rms_norm_rule(const Graph& graph, const Node& node) {
  return norm_rule(graph, node, 1);
}

Rule softmax_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& shape = rule.operand_shape(0);
  const int split = normalize_dim(node.int_argument("dim", -1), shape.size());
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    if (dim == split) continue;
    const int factor = rule.factor(fmt::format("b{}", dim), shape[dim]);
    rule.bind_operand(0, dim, factor);
    rule.bind_output(0, dim, factor);
  }
  if (graph.output(node, 0).requires_grad) rule.save_output(0);
  rule.flops(5 * rule.output_elements(), 4 * rule.output_elements());
  return rule.take();
}

}  // namespace

void register_normalization(Registry& registry) {
  registry.add("aten.layer_norm.default", {layer_norm_rule, {}});
  registry.add("aten.rms_norm.default", {rms_norm_rule, {}});
  for (const char* target :
       {"aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int",
        "aten._log_softmax.default"}) {
    registry.add(target, {softmax_rule, {}});
  }
}

}  // namespace tensoropt
