// Normalisations over trailing dims or groups of channels, and softmax over one
// dim. What is normalised together is not split.

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
        rule.factor(str_format("b{}", dim), rule.operand_shape(0)[dim]));
    rule.bind_operand(0, at, factors.back());
    rule.bind_output(0, at, factors.back());
  }
  return factors;
}

// A native norm also gives its statistics, with dims of size 1 for what is
// normalised.
void bind_statistics(RuleBuilder& rule, const std::vector<int>& factors) {
  for (int output = 1; output < rule.num_outputs(); ++output) {
    for (std::size_t dim = 0; dim < factors.size(); ++dim) {
      rule.bind_output(output, static_cast<int>(dim), factors[dim]);
    }
  }
}

// Saves input and weight, and per normalised row `statistics` numbers.
Rule norm_rule(const Graph& graph, const Node& node, double statistics) {
  RuleBuilder rule(graph, node);
  const auto normalized = node.ints_argument("normalized_shape");
  const std::size_t leading = rule.operand_shape(0).size() - normalized.size();
  const std::vector<int> factors = bind_leading(rule, leading);
  bind_statistics(rule, factors);
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

// [n, c, ...] normalised over groups of channels; whole groups can be split.
Rule group_norm_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const std::int64_t num_groups = node.int_argument("num_groups", 1);
  const std::int64_t batch_size = rule.operand_shape(0)[0];
  const int batch = rule.factor("b", batch_size);
  const int group = rule.factor("g", num_groups);
  rule.bind_operand(0, 0, batch);
  rule.bind_operand(0, 1, group);
  rule.bind_output(0, 0, batch);
  rule.bind_output(0, 1, group);
  for (int i = 1; i < rule.num_operands(); ++i) rule.bind_operand(i, 0, group);
  if (graph.output(node, 0).requires_grad) {
    rule.save_operand(0);
    if (node.operand_index("weight") >= 0) rule.save_operand(1);
    const double rows = static_cast<double>(batch_size * num_groups);
    rule.saves_extra(2 * rows * 4, {batch, group});  // mean and 1 / deviation
  }
  const double flops = kNormFlopsPerElement * rule.output_elements();
  rule.flops(flops, 2 * flops);
  return rule.take();
}

constexpr int kGroupFactor = 1;  // "g" above

LocalForm group_norm_local(const Graph&, const Node& node,
                           const LocalContext& context) {
  const std::int64_t num_groups = node.int_argument("num_groups", 1);
  LocalForm form;
  form.arguments.push_back(
      {"num_groups", Literal(context.range(kGroupFactor, num_groups).size())});
  return form;
}

// [n, c, ...] normalised over what comes after channels; one call may have one
// of weight, bias and running statistics for each channel. Statistics that are
// updated are those of the whole batch, so then the call runs whole.
Rule instance_norm_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const bool updates = node.operand_index("running_mean") >= 0 &&
                       node.bool_argument("use_input_stats", true);
  const auto& shape = rule.operand_shape(0);
  if (updates) {
    rule.not_repeatable();
  } else {
    const int batch = rule.factor("b", shape[0]);
    const int channel = rule.factor("c", shape[1]);
    rule.bind_operand(0, 0, batch);
    rule.bind_operand(0, 1, channel);
    rule.bind_output(0, 0, batch);
    rule.bind_output(0, 1, channel);
    for (int i = 1; i < rule.num_operands(); ++i) {
      rule.bind_operand(i, 0, channel);
    }
    if (graph.output(node, 0).requires_grad) {
      rule.saves_extra(2 * static_cast<double>(shape[0] * shape[1]) * 4,
                       {batch, channel});
    }
  }
  if (graph.output(node, 0).requires_grad) {
    rule.save_operand(0);
    if (node.operand_index("weight") >= 0) rule.save_operand(1);
  }
  const double flops = kNormFlopsPerElement * rule.output_elements();
  rule.flops(flops, 2 * flops);
  return rule.take();
}

// A weight is its direction v times a length g for each index of `dim`.
Rule weight_norm_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& shape = rule.operand_shape(0);
  std::vector<bool> fixed(shape.size(), true);
  fixed[normalize_dim(node.int_argument("dim", 0), shape.size())] = false;
  rule.keep_dims(fixed);
  rule.save_operand(0);
  rule.save_operand(1);
  rule.flops(3 * rule.output_elements(), 6 * rule.output_elements());
  return rule.take();
}

Rule softmax_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& shape = rule.operand_shape(0);
  const int split = normalize_dim(node.int_argument("dim", -1), shape.size());
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    if (dim == split) continue;
    const int factor = rule.factor(str_format("b{}", dim), shape[dim]);
    rule.bind_operand(0, dim, factor);
    rule.bind_output(0, dim, factor);
  }
  if (graph.output(node, 0).requires_grad) rule.save_output(0);
  rule.flops(5 * rule.output_elements(), 4 * rule.output_elements());
  return rule.take();
}

}  // namespace

void register_normalization(Registry& registry) {
  for (const char* target :
       {"aten.layer_norm.default", "aten.native_layer_norm.default"}) {
    registry.add(target, {layer_norm_rule, {}});
  }
  registry.add("aten.instance_norm.default", {instance_norm_rule, {}});
  registry.add("aten._weight_norm.default", {weight_norm_rule, {}});
  registry.add("aten.rms_norm.default", {rms_norm_rule, {}});
  registry.add("aten.group_norm.default", {group_norm_rule, group_norm_local});
  for (const char* target :
       {"aten.softmax.int", "aten._softmax.default",
        "aten._safe_softmax.default", "aten.log_softmax.int",
        "aten._log_softmax.default"}) {
    registry.add(target, {softmax_rule, {}});
  }
}

}  // namespace tensoropt
