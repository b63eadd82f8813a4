// Reductions over dims, and operators that go along one dim.
//
// Sums, counts and means may be split over the dims they reduce (the result is
// Partial). The others only over the dims they keep: no sum of what the parts
// give is their result.

#include <algorithm>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

std::vector<bool> reduced_dims(const Node& node, std::size_t rank) {
  const auto dims = node.ints_argument("dim");
  return dims.empty() ? std::vector<bool>(rank, true) : mark_dims(dims, rank);
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
      const int factor = rule.factor(str_format("d{}", dim), shape[dim]);
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

// A mean over a part counts as much of the mean over all as it has of it.
LocalForm mean_local(const Graph& graph, const Node& node,
                     const LocalContext& context) {
  const auto reduced =
      reduced_dims(node, graph.operand(node, 0).meta.shape.size());
  LocalForm form;
  for (std::size_t dim = 0; dim < reduced.size(); ++dim) {
    if (reduced[dim]) form.scale *= context.share(static_cast<int>(dim));
  }
  return form;
}

// Pending sums do not pass: a sum of counts is no count of a sum.
Rule count_rule(const Graph& graph, const Node& node) {
  return reduction(graph, node, true).take();
}

// What autograd keeps.
struct Saved {
  bool input = false;
  bool output = false;
  int indices = -1;  // of what was selected: an output
};

void apply_saved(RuleBuilder& rule, const Graph& graph, const Node& node,
                 Saved saved) {
  if (!graph.output(node, 0).requires_grad) return;
  if (saved.input) rule.save_operand(0);
  if (saved.output) rule.save_output(0);
  if (saved.indices >= 0) rule.save_output(saved.indices);
}

Rule selection_rule(const Graph& graph, const Node& node, Saved saved) {
  RuleBuilder rule = reduction(graph, node, false);
  apply_saved(rule, graph, node, saved);
  return rule.take();
}

// Along one dim, which is not split and may change its size.
Rule scan_rule(const Graph& graph, const Node& node, Saved saved, bool linear) {
  RuleBuilder rule(graph, node);
  rule.keep_dims(mark_dim(node, "dim", 0, rule.operand_shape(0).size()));
  apply_saved(rule, graph, node, saved);
  if (linear) rule.linear_in({0});
  const double elements =
      static_cast<double>(graph.operand(node, 0).meta.num_elements());
  rule.flops(elements, elements);
  return rule.take();
}

// Counts of equal bins. Without limits these are the extremes of all elements,
// which no part knows.
Rule histogram_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& shape = rule.operand_shape(0);
  const bool limits =
      node.double_argument("min", 0) < node.double_argument("max", 0);
  for (int dim = 0; limits && dim < static_cast<int>(shape.size()); ++dim) {
    rule.bind_operand(0, dim, rule.factor(str_format("d{}", dim), shape[dim]));
  }
  const double elements =
      static_cast<double>(graph.operand(node, 0).meta.num_elements());
  rule.flops(elements, 0);
  return rule.take();
}

struct Scan {
  const char* target;
  Saved saved;
  bool linear = false;
};

constexpr Scan kScans[] = {
    {"cumsum.default", {}, true},
    {"cumprod.default", {.input = true, .output = true}},
    {"logcumsumexp.default", {.input = true, .output = true}},
    {"cummax.default", {.indices = 1}},
    {"cummin.default", {.indices = 1}},
    {"sort.default", {.indices = 1}},
    {"sort.stable", {.indices = 1}},
    {"topk.default", {.indices = 1}},
    {"argsort.default", {}},
    {"argsort.stable", {}},
};

struct Selection {
  Saved saved;
  std::vector<const char*> targets;
};

const std::vector<Selection>& selections() {
  static const std::vector<Selection> all = {
      {{},
       {"argmax.default", "argmin.default", "any.default", "any.dim",
        "any.dims", "all.default", "all.dim", "all.dims"}},
      {{.indices = 1},
       {"max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode.default",
        "kthvalue.default"}},
      {{.input = true},
       {"var.default", "var.correction", "var.dim", "var_mean.correction"}},
      {{.input = true, .output = true},
       {"amax.default", "amin.default", "max.default", "min.default",
        "aminmax.default", "median.default", "logsumexp.default", "std.default",
        "std.correction", "std.dim", "std_mean.correction", "prod.default",
        "prod.dim_int", "linalg_vector_norm.default", "norm.Scalar",
        "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype"}},
  };
  return all;
}

}  // namespace

void register_reductions(Registry& registry) {
  for (const char* target : {"aten.sum.default", "aten.sum.dim_IntList"}) {
    registry.add(target, {linear_reduction_rule, {}});
  }
  for (const char* target : {"aten.mean.default", "aten.mean.dim"}) {
    registry.add(target, {linear_reduction_rule, mean_local});
  }
  for (const char* target : {"nansum.default", "count_nonzero.default",
                             "count_nonzero.dim_IntList"}) {
    registry.add(str_format("aten.{}", target), {count_rule, {}});
  }
  for (const Selection& selection : selections()) {
    for (const char* target : selection.targets) {
      registry.add(
          str_format("aten.{}", target),
          {[saved = selection.saved](const Graph& graph, const Node& node) {
             return selection_rule(graph, node, saved);
           },
           {}});
    }
  }
}

// Along a dim, each entry from those before it, or in order.
void register_scans(Registry& registry) {
  for (const Scan& scan : kScans) {
    registry.add(str_format("aten.{}", scan.target),
                 {[scan](const Graph& graph, const Node& node) {
                    return scan_rule(graph, node, scan.saved, scan.linear);
                  },
                  {}});
  }
  registry.add("aten.histc.default", {histogram_rule, {}});
}

}  // namespace tensoropt
