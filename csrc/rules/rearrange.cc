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

// One factor per dim of a shape except `fixed`.
std::vector<int> free_factors(RuleBuilder& rule, const Shape& shape,
                              int fixed) {
  std::vector<int> factors;
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    if (dim == fixed) continue;
    factors.push_back(rule.factor(str_format("d{}", dim), shape[dim]));
  }
  return factors;
}

// Joins all operands along `dim` of the output, which is new in a stack.
RuleBuilder joined(const Graph& graph, const Node& node, int dim,
                   bool stacked) {
  RuleBuilder rule(graph, node);
  const std::vector<int> factors =
      free_factors(rule, rule.output_shape(0), dim);
  std::vector<int> operands(rule.num_operands());
  std::iota(operands.begin(), operands.end(), 0);
  for (const int operand : operands) {
    tie(rule, factors, operand, 0, stacked ? -1 : dim, dim);
  }
  rule.linear_in(operands);
  return rule;
}

Rule join_rule(const Graph& graph, const Node& node, bool stacked) {
  const std::size_t rank = graph.output(node, 0).meta.shape.size();
  const int dim = normalize_dim(node.int_argument("dim", 0), rank);
  return joined(graph, node, dim, stacked).take();
}

// Joins along dim 1, vectors along dim 0.
Rule hstack_rule(const Graph& graph, const Node& node) {
  const std::size_t rank = graph.output(node, 0).meta.shape.size();
  return joined(graph, node, rank > 1 ? 1 : 0, false).take();
}

// Joins along dim 0; vectors become rows.
Rule vstack_rule(const Graph& graph, const Node& node) {
  const std::size_t rank = graph.operand(node, 0).meta.shape.size();
  return joined(graph, node, 0, rank < 2).take();
}

// Cuts along `dim` into views; `removed` if the dim disappears.
Rule cut(const Graph& graph, const Node& node, bool removed) {
  RuleBuilder rule(graph, node);
  const auto& in = rule.operand_shape(0);
  const int dim = normalize_dim(node.int_argument("dim", 0), in.size());
  const std::vector<int> factors = free_factors(rule, in, dim);
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
  tie(rule, free_factors(rule, rule.operand_shape(0), fixed), 0, 0, fixed,
      fixed);
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

// Dims in which elements move, or meet others, are fixed.
Rule moved(const Graph& graph, const Node& node,
           const std::vector<bool>& fixed) {
  RuleBuilder rule(graph, node);
  rule.keep_dims(fixed);
  rule.linear_in({0});
  rule.flops(rule.output_elements(), rule.output_elements());
  return rule.take();
}

std::size_t rank_of(const Graph& graph, const Node& node) {
  return graph.operand(node, 0).meta.shape.size();
}

Rule flip_rule(const Graph& graph, const Node& node) {
  return moved(graph, node,
               mark_dims(node.ints_argument("dims"), rank_of(graph, node)));
}

// Without dims the elements are rolled as one sequence.
Rule roll_rule(const Graph& graph, const Node& node) {
  const auto dims = node.ints_argument("dims");
  const std::size_t rank = rank_of(graph, node);
  return moved(
      graph, node,
      dims.empty() ? std::vector<bool>(rank, true) : mark_dims(dims, rank));
}

// Differences of neighbours; what is put before and after counts as the rest.
Rule diff_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.keep_dims(mark_dim(node, "dim", -1, rank_of(graph, node)));
  std::vector<int> operands(rule.num_operands());
  std::iota(operands.begin(), operands.end(), 0);
  rule.linear_in(operands);
  rule.flops(rule.output_elements(), rule.output_elements());
  return rule.take();
}

// Writes `src` to a part of `dim`.
Rule slice_scatter_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.keep_dims(mark_dim(node, "dim", 0, rank_of(graph, node)));
  rule.linear_in({0, 1});
  return rule.take();
}

// `src` lacks the dim.
Rule select_scatter_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& shape = rule.operand_shape(0);
  const int dim = normalize_dim(node.int_argument("dim", 0), shape.size());
  const std::vector<int> factors = free_factors(rule, shape, dim);
  tie(rule, factors, 0, 0, dim, dim);
  tie(rule, factors, 1, 0, -1, dim);
  rule.linear_in({0, 1});
  return rule.take();
}

// Copies all of a dim `repeats` times, after one another: the copies can be
// split. Repeats may count more dims than there are, or fewer.
Rule repeat_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& in = rule.operand_shape(0);
  const auto& out = rule.output_shape(0);
  const int new_dims = static_cast<int>(out.size() - in.size());
  for (int dim = 0; dim < static_cast<int>(out.size()); ++dim) {
    const std::int64_t size = dim < new_dims ? 1 : in[dim - new_dims];
    const bool once = size == out[dim];
    const std::int64_t copies = size == 0 ? 1 : out[dim] / size;
    const int factor =
        rule.factor(str_format("d{}", dim), once ? size : copies);
    rule.bind_output(0, dim, factor);
    if (once && dim >= new_dims) rule.bind_operand(0, dim - new_dims, factor);
  }
  rule.linear_in({0});
  rule.flops(rule.output_elements(), rule.output_elements());
  return rule.take();
}

// The number of copies of each dim of the output.
LocalFunction repeat_local(const char* argument) {
  return [argument](const Graph& graph, const Node& node,
                    const LocalContext& context) {
    const Shape& in = graph.operand(node, 0).meta.shape;
    const Shape& out = graph.output(node, 0).meta.shape;
    const std::size_t new_dims = out.size() - in.size();
    Shape repeats = context.output_shapes[0];
    for (std::size_t dim = new_dims; dim < out.size(); ++dim) {
      const std::int64_t size = in[dim - new_dims];
      repeats[dim] = size == out[dim] ? 1 : repeats[dim] / size;
    }
    LocalForm form;
    form.arguments.push_back({argument, Literal(repeats)});
    return form;
  };
}

// Every element several times in a row: blocks stay blocks. Without a dim the
// elements are one sequence, whose outermost dim is a block.
Rule repeat_interleave_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& in = rule.operand_shape(0);
  rule.linear_in({0});
  rule.flops(rule.output_elements(), rule.output_elements());
  const std::size_t dims = node.find("dim") ? in.size() : in.size() > 0 ? 1 : 0;
  for (int dim = 0; dim < static_cast<int>(dims); ++dim) {
    const int factor = rule.factor(str_format("d{}", dim), in[dim]);
    rule.bind_operand(0, dim, factor);
    rule.bind_output(0, dim, factor);
  }
  return rule.take();
}

LocalForm repeat_interleave_local(const Graph&, const Node&,
                                  const LocalContext&) {
  LocalForm form;
  form.arguments.push_back({"output_size", Literal{}});
  return form;
}

// Windows of `dimension` in a new last dim.
Rule windows_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.linear_in({0});
  rule.view();
  const auto& in = rule.operand_shape(0);
  if (in.empty()) return rule.take();
  const int fixed = normalize_dim(node.int_argument("dimension", 0), in.size());
  for (int dim = 0; dim < static_cast<int>(in.size()); ++dim) {
    if (dim == fixed) continue;
    const int factor = rule.factor(str_format("d{}", dim), in[dim]);
    rule.bind_operand(0, dim, factor);
    rule.bind_output(0, dim, factor);
  }
  return rule.take();
}

// Two dims and the diagonal of them, which is the last dim of the smaller
// tensor; `small` and `large` have the other dims in one order.
void bind_around_diagonal(RuleBuilder& rule, const Node& node, bool cut) {
  const Shape& large = cut ? rule.operand_shape(0) : rule.output_shape(0);
  const int first = normalize_dim(node.int_argument("dim1", 0), large.size());
  const int second = normalize_dim(node.int_argument("dim2", 1), large.size());
  int small_dim = 0;
  for (int dim = 0; dim < static_cast<int>(large.size()); ++dim) {
    if (dim == first || dim == second) continue;
    const int factor = rule.factor(str_format("d{}", dim), large[dim]);
    rule.bind_operand(0, cut ? dim : small_dim, factor);
    rule.bind_output(0, cut ? small_dim : dim, factor);
    ++small_dim;
  }
  rule.linear_in({0});
}

Rule diagonal_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  bind_around_diagonal(rule, node, true);
  rule.view();
  return rule.take();
}

Rule diag_embed_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  bind_around_diagonal(rule, node, false);
  rule.flops(rule.output_elements(), rule.output_elements());
  return rule.take();
}

// All dims can be split: where rows or columns are, the diagonal of a block is
// not that of the whole.
Rule triangle_rule(const Graph& graph, const Node& node) {
  return moved(graph, node, std::vector<bool>(rank_of(graph, node), false));
}

LocalForm triangle_local(const Graph& graph, const Node& node,
                         const LocalContext& context) {
  const int columns = static_cast<int>(rank_of(graph, node)) - 1;
  const Shape& shape = graph.operand(node, 0).meta.shape;
  const std::int64_t diagonal = node.int_argument("diagonal", 0);
  const std::int64_t first_row =
      context.range(columns - 1, shape[columns - 1]).begin;
  const std::int64_t first_column =
      context.range(columns, shape[columns]).begin;
  LocalForm form;
  form.arguments.push_back(
      {"diagonal", Literal(diagonal + first_row - first_column)});
  return form;
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
    const int factor = rule.factor(str_format("d{}", dim), shape[dim]);
    rule.bind_operand(0, dim, factor);
    rule.bind_output(0, dim, factor);
  }
  if (node.double_argument("value", 0) == 0) rule.linear_in({0});
  return rule.take();
}

void register_joins(Registry& registry) {
  for (const bool stacked : {false, true}) {
    registry.add(stacked ? "aten.stack.default" : "aten.cat.default",
                 {[stacked](const Graph& graph, const Node& node) {
                    return join_rule(graph, node, stacked);
                  },
                  {}});
  }
  registry.add("aten.hstack.default", {hstack_rule, {}});
  registry.add("aten.vstack.default", {vstack_rule, {}});
  registry.add("aten.slice_scatter.default", {slice_scatter_rule, {}});
  registry.add("aten.select_scatter.default", {select_scatter_rule, {}});
}

void register_cuts(Registry& registry) {
  for (const char* target :
       {"split.Tensor", "split.sizes", "split_with_sizes.default",
        "unsafe_split.Tensor", "unsafe_split_with_sizes.default",
        "chunk.default", "unsafe_chunk.default", "tensor_split.sections",
        "tensor_split.indices"}) {
    registry.add(str_format("aten.{}", target), {split_rule, {}});
  }
  for (const char* target : {"aten.select.int", "aten.unbind.int"}) {
    registry.add(target, {select_rule, {}});
  }
  registry.add("aten.slice.Tensor", {slice_rule, {}});
  registry.add("aten.narrow.default", {slice_rule, narrow_local});
  registry.add("aten.unfold.default", {windows_rule, {}});
  registry.add("aten.diagonal.default", {diagonal_rule, {}});
}

}  // namespace

void register_rearrange(Registry& registry) {
  register_joins(registry);
  register_cuts(registry);
  registry.add("aten.diag_embed.default", {diag_embed_rule, {}});
  registry.add("aten.tril.default", {triangle_rule, triangle_local});
  registry.add("aten.triu.default", {triangle_rule, triangle_local});
  registry.add("aten.flip.default", {flip_rule, {}});
  registry.add("aten.roll.default", {roll_rule, {}});
  registry.add("aten.diff.default", {diff_rule, {}});
  registry.add("aten.pad.default", {pad_rule, {}});
  registry.add("aten.constant_pad_nd.default", {pad_rule, {}});
  registry.add("aten.repeat.default", {repeat_rule, repeat_local("repeats")});
  registry.add("aten.tile.default", {repeat_rule, repeat_local("dims")});
  registry.add("aten.repeat_interleave.self_int",
               {repeat_interleave_rule, repeat_interleave_local});
}

}  // namespace tensoropt
