// scaled_dot_product_attention: query [..., h, l, e], key [..., g, s, e],
// value [..., g, s, v]; with grouped queries h is a multiple of g.

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// A mask broadcasts against [..., h, l, s].
void bind_mask(RuleBuilder& rule, int mask) {
  const auto& shape = rule.operand_shape(mask);
  const auto& out = rule.output_shape(0);
  const int offset =
      static_cast<int>(out.size()) - static_cast<int>(shape.size());
  for (int dim = 0; dim + 1 < static_cast<int>(shape.size()); ++dim) {
    if (shape[dim] != out[offset + dim] || offset + dim < 0) continue;
    const int factor = rule.output_factor(offset + dim);
    if (factor != kNoFactor) rule.bind_operand(mask, dim, factor);
  }
}

void set_costs(RuleBuilder& rule, const Graph& graph, const Node& node,
               const std::vector<int>& factors) {
  const auto& query = rule.operand_shape(0);
  double rows = 1;
  for (std::size_t dim = 0; dim + 1 < rule.output_shape(0).size(); ++dim) {
    rows *= static_cast<double>(rule.output_shape(0)[dim]);
  }
  const double keys = static_cast<double>(
      rule.operand_shape(1)[rule.operand_shape(1).size() - 2]);
  const double causal = node.bool_argument("is_causal", false) ? 0.5 : 1.0;
  const double flops =
      4 * causal * rows * keys * static_cast<double>(query.back());
  rule.flops(flops, 2.5 * flops);
  rule.attention();
  if (!graph.output(node, 0).requires_grad) return;
  for (int i = 0; i < 3; ++i) rule.save_operand(i);
  rule.save_output(0);
  rule.saves_extra(rows * 4, factors);  // the log-sum-exp of each row
}

// Whether all operands have the rank of the output; others broadcast.
bool equal_ranks(const RuleBuilder& rule) {
  const std::size_t rank = rule.output_shape(0).size();
  for (int operand = 0; operand < 3; ++operand) {
    if (rule.operand_shape(operand).size() != rank) return false;
  }
  return true;
}

// Batch dims and heads are split alike on all operands, and query rows by
// themselves, those of a causal mask into equal parts. Keys are not split:
// softmax is over them.
std::vector<int> bind_dims(RuleBuilder& rule, bool causal) {
  const auto& query = rule.operand_shape(0);
  const auto& key = rule.operand_shape(1);
  const auto& value = rule.operand_shape(2);
  const int rank = static_cast<int>(query.size());
  std::vector<int> factors;
  for (int dim = 0; dim < rank - 2; ++dim) {
    const bool alike =
        key[dim] > 0 && query[dim] % key[dim] == 0 && key[dim] == value[dim];
    const int factor = rule.factor(
        dim == rank - 3 ? "h" : str_format("b{}", dim), alike ? key[dim] : 1);
    for (int operand = 0; operand < 3; ++operand) {
      rule.bind_operand(operand, dim, factor);
    }
    rule.bind_output(0, dim, factor);
    factors.push_back(factor);
  }
  factors.push_back(rule.factor("l", query[rank - 2]));
  if (causal) rule.keep_even(factors.back());
  rule.bind_operand(0, rank - 2, factors.back());
  rule.bind_output(0, rank - 2, factors.back());
  return factors;
}

// Where rows of a causal mask are split, blocks trade half of their rows with
// those at the other end, and get the results back (attention_op.cc). That is
// priced as an all-to-all of all rows, which takes as long on two ranks and
// longer on more. Autograd keeps the rows that were got, results before they
// are traded, and masks.
void trade_rows(RuleBuilder& rule, const Graph& graph, const Node& node,
                const std::vector<int>& factors) {
  const int rows = factors.back();
  const double query = graph.operand(node, 0).meta.num_bytes();
  const double output = graph.output(node, 0).meta.num_bytes();
  const auto trade = [&](double bytes, Pass pass) {
    rule.runs_collective({Collective::kAllToAll, {rows}, bytes, factors, pass});
  };
  trade(query, Pass::kForward);
  trade(output, Pass::kForward);
  if (!graph.output(node, 0).requires_grad) return;
  trade(output, Pass::kBackward);
  trade(query, Pass::kBackward);
  rule.saves_if_split(rows, query / 2 + output, factors);
  // The masks of the rows, in the dtype of the query, are those of all heads.
  const auto& shape = rule.operand_shape(0);
  const double scores =
      static_cast<double>(shape[shape.size() - 2]) *
      static_cast<double>(rule.operand_shape(1)[shape.size() - 2]);
  rule.saves_if_split(
      rows, scores / 2 * item_size(graph.operand(node, 0).meta.dtype), {rows});
}

Rule attention_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const bool drops = node.double_argument("dropout_p", 0) > 0;
  std::vector<int> factors;
  if (equal_ranks(rule)) {
    const bool causal = node.bool_argument("is_causal", false);
    factors = bind_dims(rule, causal);
    if (causal) trade_rows(rule, graph, node, factors);
    if (node.operand_index("attn_mask") >= 0) bind_mask(rule, 3);
  }
  if (drops) rule.random();
  set_costs(rule, graph, node, factors);
  return rule.take();
}

LocalForm attention_local(const Graph& graph, const Node& node,
                          const LocalContext& context) {
  LocalForm form;
  const std::size_t rank = graph.output(node, 0).meta.shape.size();
  // Query rows are the factor after batch dims and heads, if there is one.
  const int rows = static_cast<int>(rank) - 2;
  if (!node.bool_argument("is_causal", false) ||
      rows >= static_cast<int>(context.factor_axes.size()) ||
      context.factor_axes[rows] == 0) {
    return form;
  }
  const Literal* scale = node.find("scale");
  form.target = "tensoropt.balanced_causal_attention.default";
  form.operands = {"query", "key", "value"};
  form.extra = {node.double_argument("dropout_p", 0),
                scale ? *scale : Literal{},
                node.bool_argument("enable_gqa", false)};
  form.groups = {context.factor_axes[rows]};
  return form;
}

}  // namespace

void register_attention(Registry& registry) {
  registry.add("aten.scaled_dot_product_attention.default",
               {attention_rule, attention_local});
}

}  // namespace tensoropt
