// Reductions over dims. Sums and means may be split over the dims they reduce
// (the result is Partial); the others only over the dims they keep.

#include <algorithm>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

std::vector<bool> reduced_dims(const Node& node, std::size_t rank) {
  const auto dims = node.ints_argument("dim");
  std::vector<bool> reduced(rank, dims.empty());
  for (const std::int64_t dim : dims) {
    if (rank > 0) reduced[normalize_dim(dim, rank)] = true;
  }
  return reduced;
}

// Binds kept dims to all outputs, and reduced ones if `split_reduced`.
RuleBuilder reduction(const Graph& graph, const Node& node,
                      bool split_reduced) {
  RuleBuilder rule(graph, node);
  const auto& shape = rule.operand_shape(0);
  const std::vector<bool> reduced = reduced_dims(node, shape.size());
  const bool keep = node.bool_argument("keepdim", false);
  int out = 0;
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    if (!reduced[dim] || split_reduced) {
      const int factor = rule.factor(fmt::format("d{}", dim), shape[dim]);
      rule.bind_operand(0, dim, factor);
      for (int o = 0; o < rule.num_outputs() && !reduced[dim]; ++o) {
        rule.bind_output(o, out, factor);
      }
    }
    if (!reduced[dim] || keep) ++out;
  }
  const double elements =
      static_cast<double>(graph.operand(node, 0).meta.num_elements());
  rule.flops(elements, elements);
  return rule;
}

Rule linear_reduction_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = reduction(graph, node, true);
  rule.linear_in({0});
  return rule.take();
}

// A mean over a part counts 1/parts of the mean over all.
LocalForm mean_local(const Graph& graph, const Node& node,
                     const LocalContext& context) {
  const auto reduced =
      reduced_dims(node, graph.operand(node, 0).meta.shape.size());
  LocalForm form;
  for (std::size_t dim = 0; dim < reduced.size(); ++dim) {
    if (reduced[dim]) form.scale /= context.parts(static_cast<int>(dim));
  }
  return form;
}

Rule selection_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = reduction(graph, node, false);
  if (rule.operand_requires_grad(0)) rule.save_operand(0);
  return rule.take();
}

// Along one dim, keeping the shape: that dim is not split.
Rule scan_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& shape = rule.operand_shape(0);
  const int scanned = normalize_dim(node.int_argument("dim", 0), shape.size());
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    if (dim == scanned) continue;
    const int factor = rule.factor(fmt::format("d{}", dim), shape[dim]);
    rule.bind_operand(0, dim, factor);
    rule.bind_output(0, dim, factor);
  }
  rule.linear_in({0});
  return rule.take();
}

}  // namespace

void register_reductions(Registry& registry) {
  for (const char* target : {"aten.sum.default", "aten.sum.dim_IntList"}) {
    registry.add(target, {linear_reduction_rule, {}});
  }
  for (const char* target : {"aten.mean.default", "aten.mean.dim"}) {
    registry.add(target, {linear_reduction_rule, mean_local});
  }
  for (const char* target :
       {"aten.amax.default", "aten.amin.default", "aten.max.dim",
        "aten.min.dim", "aten.max.default", "aten.min.default",
        "aten.argmax.default", "aten.argmin.default", "aten.any.default",
        "aten.any.dim", "aten.all.default", "aten.all.dim",
        "aten.logsumexp.default", "aten.var.correction", "aten.var.dim",
        "aten.std.correction", "aten.std.dim", "aten.prod.dim_int"}) {
    registry.add(target, {selection_rule, {}});
  }
  registry.add("aten.cumsum.default", {scan_rule, {}});
}

}  // namespace tensoropt
