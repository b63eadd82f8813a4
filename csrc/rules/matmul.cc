// Matrix products, with what is added to them.

#include <numeric>
#include <utility>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// Binds the rows of a layer, all dims of operand 0 but the last, which all
// outputs have as well. Returns the last dim.
int bind_rows(RuleBuilder& rule) {
  const auto& input = rule.operand_shape(0);
  const int last = static_cast<int>(input.size()) - 1;
  for (int dim = 0; dim < last; ++dim) {
    const int batch = rule.factor(str_format("b{}", dim), input[dim]);
    rule.bind_operand(0, dim, batch);
    for (int output = 0; output < rule.num_outputs(); ++output) {
      rule.bind_output(output, dim, batch);
    }
  }
  return last;
}

// [..., k] x [n, k] (+ [n]) -> [..., n]; weights [k] give [...]. A transposed
// weight is [k, n].
Rule layer_rule(const Graph& graph, const Node& node, bool transposed) {
  RuleBuilder rule(graph, node);
  const auto& weight = rule.operand_shape(1);
  const bool matrix = weight.size() > 1;
  const int last = bind_rows(rule);
  const int n = rule.factor("n", matrix ? weight[transposed ? 1 : 0] : 1);
  const int k = rule.factor("k", transposed ? weight[0] : weight.back());
  rule.bind_operand(0, last, k);
  rule.bind_operand(1, matrix && !transposed ? 1 : 0, k);
  if (matrix) {
    rule.bind_operand(1, transposed ? 1 : 0, n);
    rule.bind_output(0, last, n);
  }
  if (rule.num_operands() > 2) {
    rule.broadcast_operand(2);
    rule.additive(2);
  }
  rule.save_product(0, 1);
  const auto inputs = static_cast<double>(rule.operand_shape(0)[last]);
  rule.contraction(2 * rule.output_elements() * inputs, 0, 1);
  return rule.take();
}

Rule linear_rule(const Graph& graph, const Node& node) {
  return layer_rule(graph, node, false);
}

Rule linear_transposed_rule(const Graph& graph, const Node& node) {
  return layer_rule(graph, node, true);
}

// [..., k] x [c, n, k] (+ [c, n]) -> [..., c, n], or [k, c, n] if the weight is
// transposed. What uses the c blocks takes them apart, so they are not split,
// and n and k evenly only, as the parameter is.
Rule linear_blocks_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& input = rule.operand_shape(0);
  const auto& weight = rule.operand_shape(1);
  const bool transposed = node.bool_argument("transposed", false);
  const int last = bind_rows(rule);
  const int n = rule.factor("n", weight[transposed ? 2 : 1]);
  const int k = rule.factor("k", input[last]);
  rule.keep_even(n);
  rule.keep_even(k);
  rule.bind_operand(0, last, k);
  rule.bind_operand(1, transposed ? 0 : 2, k);
  rule.bind_operand(1, transposed ? 2 : 1, n);
  rule.bind_output(0, last + 1, n);
  if (rule.num_operands() > 2) {
    rule.bind_operand(2, 1, n);
    rule.additive(2);
  }
  rule.save_product(0, 1);
  rule.contraction(
      2 * rule.output_elements() * static_cast<double>(input[last]), 0, 1);
  return rule.take();
}

// [..., k] x [rows, k] (+ [rows]) -> [..., size] for each of several sections
// of the rows. They are split together, each into equal parts, so a rank needs
// rows from all over the weight.
Rule linear_sections_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  std::int64_t common = 0;
  std::int64_t columns = 0;
  for (const std::int64_t size : node.ints_argument("sizes")) {
    common = std::gcd(common, size);
    columns += size;
  }
  const int last = bind_rows(rule);
  const int n = rule.factor("n", common);
  rule.keep_even(n);
  for (int output = 0; output < rule.num_outputs(); ++output) {
    rule.bind_output(output, last, n);
  }
  const int k = rule.factor("k", rule.operand_shape(0)[last]);
  rule.bind_operand(0, last, k);
  rule.bind_operand(1, 1, k);
  if (rule.num_operands() > 2) rule.additive(2);
  rule.save_product(0, 1);
  rule.contraction(
      2 * static_cast<double>(num_elements(rule.operand_shape(0)) * columns), 0,
      1);
  return rule.take();
}

LocalForm linear_sections_local(const Graph& graph, const Node& node,
                                const LocalContext& context) {
  const int n = static_cast<int>(graph.operand(node, 0).meta.shape.size()) - 1;
  std::vector<std::int64_t> starts = node.ints_argument("starts");
  std::vector<std::int64_t> sizes = node.ints_argument("sizes");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    sizes[i] /= context.parts(n);
    starts[i] += context.part(n) * sizes[i];
  }
  LocalForm form;
  form.arguments = {{"starts", Literal(std::move(starts))},
                    {"sizes", Literal(std::move(sizes))}};
  return form;
}

// Binds the batch dims of a product: those left of the matrix dims, aligned at
// the right as they broadcast. Vectors have none.
void bind_batch(RuleBuilder& rule, int a, int b, int num_batch) {
  const auto& out = rule.output_shape(0);
  for (int dim = 0; dim < num_batch; ++dim) {
    const int factor = rule.factor(str_format("b{}", dim), out[dim]);
    rule.bind_output(0, dim, factor);
    for (const int operand : {a, b}) {
      const auto& shape = rule.operand_shape(operand);
      const int own = dim - num_batch + static_cast<int>(shape.size()) - 2;
      if (own >= 0 && shape[own] == out[dim]) {
        rule.bind_operand(operand, own, factor);
      }
    }
  }
}

// Product of operands a [..., m, k] and b [..., k, n]; vectors lack m or n.
void bind_product(RuleBuilder& rule, int a, int b) {
  const auto& left = rule.operand_shape(a);
  const auto& right = rule.operand_shape(b);
  const int left_rank = static_cast<int>(left.size());
  const int right_rank = static_cast<int>(right.size());
  int out_dim = static_cast<int>(rule.output_shape(0).size());
  int n = kNoFactor;
  int m = kNoFactor;
  if (right_rank > 1) --out_dim;
  const int n_dim = out_dim;
  if (left_rank > 1) --out_dim;
  const int m_dim = out_dim;
  bind_batch(rule, a, b, m_dim);
  if (left_rank > 1) {
    m = rule.factor("m", left[left_rank - 2]);
    rule.bind_operand(a, left_rank - 2, m);
    rule.bind_output(0, m_dim, m);
  }
  if (right_rank > 1) {
    n = rule.factor("n", right[right_rank - 1]);
    rule.bind_operand(b, right_rank - 1, n);
    rule.bind_output(0, n_dim, n);
  }
  const std::int64_t depth = left[left_rank - 1];
  const int k = rule.factor("k", depth);
  rule.bind_operand(a, left_rank - 1, k);
  rule.bind_operand(b, right_rank > 1 ? right_rank - 2 : 0, k);
  rule.save_product(a, b);
  rule.contraction(2 * rule.output_elements() * static_cast<double>(depth), a,
                   b);
}

Rule product_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  bind_product(rule, 0, 1);
  return rule.take();
}

// bias + a x b, the bias broadcast against the product.
Rule biased_product_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  bind_product(rule, 1, 2);
  rule.broadcast_operand(0);
  rule.additive(0);
  return rule.take();
}

// bias + the sum over b of [b, m, k] x [b, k, n].
Rule summed_product_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& left = rule.operand_shape(1);
  const int b = rule.factor("b", left[0]);
  const int m = rule.factor("m", left[1]);
  const int k = rule.factor("k", left[2]);
  const int n = rule.factor("n", rule.operand_shape(2)[2]);
  const auto bind = [&rule](int operand, const std::vector<int>& dims) {
    for (int dim = 0; dim < static_cast<int>(dims.size()); ++dim) {
      rule.bind_operand(operand, dim, dims[dim]);
    }
  };
  bind(1, {b, m, k});
  bind(2, {b, k, n});
  rule.bind_output(0, 0, m);
  rule.bind_output(0, 1, n);
  rule.broadcast_operand(0);
  rule.additive(0);
  rule.save_product(1, 2);
  rule.contraction(
      2 * rule.output_elements() * static_cast<double>(left[0] * left[2]), 1,
      2);
  return rule.take();
}

// bias + [m] x [n].
Rule outer_sum_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  for (int dim = 0; dim < 2; ++dim) {
    const int factor =
        rule.factor(dim == 0 ? "m" : "n", rule.output_shape(0)[dim]);
    rule.bind_operand(1 + dim, 0, factor);
    rule.bind_output(0, dim, factor);
  }
  rule.broadcast_operand(0);
  rule.save_product(1, 2);
  rule.contraction(2 * rule.output_elements(), 1, 2);
  return rule.take();
}

// [..., i] x [n, i, j] x [..., j] (+ [n]) -> [..., n].
Rule bilinear_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& weight = rule.operand_shape(2);
  const int last = static_cast<int>(rule.output_shape(0).size()) - 1;
  for (int dim = 0; dim < last; ++dim) {
    const int batch =
        rule.factor(str_format("b{}", dim), rule.output_shape(0)[dim]);
    rule.bind_operand(0, dim, batch);
    rule.bind_operand(1, dim, batch);
    rule.bind_output(0, dim, batch);
  }
  const int n = rule.factor("n", weight[0]);
  rule.bind_operand(2, 0, n);
  rule.bind_output(0, last, n);
  for (const int side : {0, 1}) {
    const int factor = rule.factor(side == 0 ? "i" : "j", weight[1 + side]);
    rule.bind_operand(side, last, factor);
    rule.bind_operand(2, 1 + side, factor);
  }
  if (rule.num_operands() > 3) {
    rule.bind_operand(3, 0, n);
    rule.additive(3);
  }
  for (int i = 0; i < 3; ++i) rule.save_operand(i);
  const double flops = 2 * rule.output_elements() *
                       static_cast<double>(weight[1] * (weight[2] + 1));
  rule.flops(flops, 3 * flops);
  return rule.take();
}

}  // namespace

void register_matmul(Registry& registry) {
  registry.add("aten.linear.default", {linear_rule, {}});
  registry.add("tensoropt.linear_transposed.default",
               {linear_transposed_rule, {}});
  registry.add("tensoropt.linear_blocks.default", {linear_blocks_rule, {}});
  registry.add("tensoropt.linear_sections.default",
               {linear_sections_rule, linear_sections_local});
  for (const char* target :
       {"aten.mm.default", "aten.bmm.default", "aten.matmul.default"}) {
    registry.add(target, {product_rule, {}});
  }
  for (const char* target :
       {"aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default"}) {
    registry.add(target, {biased_product_rule, {}});
  }
  registry.add("aten.addbmm.default", {summed_product_rule, {}});
  registry.add("aten.addr.default", {outer_sum_rule, {}});
  registry.add("aten.bilinear.default", {bilinear_rule, {}});
}

}  // namespace tensoropt
