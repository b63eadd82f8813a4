// Joining, cutting and moving parts of tensors along some dims: these dims are
// not split, the others pass through.

#include <algorithm>
#include <numeric>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// Ties the dims of operand `operand` and output `output`, left to right,
// leaving out the dims in `fixed_in` / `fixed_out` (-1: none).
void tie(RuleBuilder& rule, const std::vector<int>& factors, int operand,
         int output, int fixed_in, int fixed_out) {
  std::size_t next = 0;
  const int rank = static_cast<int>(rule.operand_shape(operand).size());
  for (int dim = 0; dim < rank; ++dim) {
    if (dim != fixed_in) rule.bind_operand(operand, dim, factors[next++]);
  }
  next = 0;
  const int out_rank = static_cast<int>(rule.output_shape(output).size());
  for (int dim = 0; dim < out_rank; ++dim) {
    if (dim != fixed_out) rule.bind_output(output, dim, factors[next++]);
  }
}

// One factor per dim of operand 0 except `fixed`.
std::vector<int> free_factors(RuleBuilder& rule, int fixed) {
  std::vector<int> factors;
  const auto& shape = rule.operand_shape(0);
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    if (dim == fixed) continue;
    factors.push_back(rule.factor(fmt::format("d{}", dim), shape[dim]));
  }
  return factors;
}

// Joins all operands along `dim`.
Rule cat_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& out = rule.output_shape(0);
  const int dim = normalize_dim(node.int_argument("dim", 0), out.size());
  const std::vector<int> factors = free_factors(rule, dim);
  std::vector<int> operands(rule.num_operands());
  std::iota(operands.begin(), operands.end(), 0);
  for (const int operand : operands) tie(rule, factors, operand, 0, dim, dim);
  rule.linear_in(operands);
  return rule.take();
}

Rule stack_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& out = rule.output_shape(0);
  const int dim = normalize_dim(node.int_argument("dim", 0), out.size());
  const std::vector<int> factors = free_factors(rule, -1);
  std::vector<int> operands(rule.num_operands());
  std::iota(operands.begin(), operands.end(), 0);
  for (const int operand : operands) tie(rule, factors, operand, 0, -1, dim);
  rule.linear_in(operands);
  return rule.take();
}

// Cuts along `dim` into views; `removed` if the dim disappears.
Rule cut(const Graph& graph, const Node& node, bool removed) {
  RuleBuilder rule(graph, node);
  const auto& in = rule.operand_shape(0);
  const int dim = normalize_dim(node.int_argument("dim", 0), in.size());
  const std::vector<int> factors = free_factors(rule, dim);
  for (int output = 0; output < rule.num_outputs(); ++output) {
    tie(rule, factors, 0, output, dim, removed ? -1 : dim);
  }
  rule.linear_in({0});
  rule.view();
  return rule.take();
}

Rule split_rule(const Graph& graph, const Node& node) {
  return cut(graph, node, false);
}

Rule select_rule(const Graph& graph, const Node& node) {
  return cut(graph, node, true);
}

// Dims whose size and position stay are free; a slice of everything is free
// in all dims.
Rule slice_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const bool whole = rule.operand_shape(0) == rule.output_shape(0);
  const int dim =
      normalize_dim(node.int_argument("dim", 0), rule.operand_shape(0).size());
  const int fixed = whole ? -1 : dim;
  tie(rule, free_factors(rule, fixed), 0, 0, fixed, fixed);
  rule.linear_in({0});
  rule.view();
  return rule.take();
}

// The length of a narrow of everything is that of the shard.
LocalForm narrow_local(const Graph& graph, const Node& node,
                       const LocalContext& context) {
  const Shape& in = graph.operand(node, 0).meta.shape;
  LocalForm form;
  if (in != graph.output(node, 0).meta.shape) return form;
  const int dim = normalize_dim(node.int_argument("dim", 0), in.size());
  form.arguments = {{"start", Literal(std::int64_t{0})},
                    {"length", Literal(context.output_shapes[0][dim])}};
  return form;
}

// Moves elements inside the last two dims, or the dims named: these are fixed.
Rule shuffle(const Graph& graph, const Node& node,
             const std::vector<bool>& fixed) {
  RuleBuilder rule(graph, node);
  const auto& shape = rule.operand_shape(0);
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    if (fixed[dim]) continue;
    const int factor = rule.factor(fmt::format("d{}", dim), shape[dim]);
    rule.bind_operand(0, dim, factor);
    rule.bind_output(0, dim, factor);
  }
  rule.linear_in({0});
  rule.flops(rule.output_elements(), rule.output_elements());
  return rule.take();
}

Rule triangle_rule(const Graph& graph, const Node& node) {
  const std::size_t rank = graph.operand(node, 0).meta.shape.size();
  std::vector<bool> fixed(rank, false);
  fixed[rank - 1] = fixed[rank - 2] = true;
  return shuffle(graph, node, fixed);
}

Rule flip_rule(const Graph& graph, const Node& node) {
  const std::size_t rank = graph.operand(node, 0).meta.shape.size();
  std::vector<bool> fixed(rank, false);
  for (const std::int64_t dim : node.ints_argument("dims")) {
    fixed[normalize_dim(dim, rank)] = true;
  }
  return shuffle(graph, node, fixed);
}

// Padding is given from the last dim backwards, two numbers each. Only filling
// with zeros keeps sums.
Rule pad_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto pads = node.ints_argument("pad");
  const auto& shape = rule.operand_shape(0);
  const int rank = static_cast<int>(shape.size());
  for (int dim = 0; dim < rank; ++dim) {
    const std::size_t pair = 2 * static_cast<std::size_t>(rank - 1 - dim);
    if (pair + 1 < pads.size() && (pads[pair] != 0 || pads[pair + 1] != 0)) {
      continue;
    }
    const int factor = rule.factor(fmt::format("d{}", dim), shape[dim]);
    rule.bind_operand(0, dim, factor);
    rule.bind_output(0, dim, factor);
  }
  if (node.double_argument("value", 0) == 0) rule.linear_in({0});
  return rule.take();
}

}  // namespace

void register_rearrange(Registry& registry) {
  registry.add("aten.cat.default", {cat_rule, {}});
  registry.add("aten.stack.default", {stack_rule, {}});
  for (const char* target :
       {"aten.split.Tensor", "aten.split_with_sizes.default",
        "aten.chunk.default"}) {
    registry.add(target, {split_rule, {}});
  }
  for (const char* target : {"aten.select.int", "aten.unbind.int"}) {
    registry.add(target, {select_rule, {}});
  }
  registry.add("aten.slice.Tensor", {slice_rule, {}});
  registry.add("aten.narrow.default", {slice_rule, narrow_local});
  registry.add("aten.tril.default", {triangle_rule, {}});
  registry.add("aten.triu.default", {triangle_rule, {}});
  registry.add("aten.flip.default", {flip_rule, {}});
  registry.add("aten.pad.default", {pad_rule, {}});
  registry.add("aten.constant_pad_nd.default", {pad_rule, {}});
}

}  // namespace tensoropt
