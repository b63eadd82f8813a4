#include "space/idle_dims.h"

#include <algorithm>

namespace tensoropt {

namespace {

bool is_light(const Graph& graph, const Node& node, const Rule& rule) {
  double elements = 0;
  for (const ValueId id : node.outputs) {
    elements += static_cast<double>(graph.value(id).meta.num_elements());
  }
  return rule.forward_flops <= elements;
}

}  // namespace

IdleDims::IdleDims(const Graph& graph, const RulesByNode& rules,
                   const RowsDim& rows_dim)
    : graph_(graph), classes_(graph, rules) {
  std::vector<int> seeds;
  std::vector<int> uneven_seeds;
  for (const Node& node : graph.nodes()) {
    if (const int dim = rows_dim(node); dim >= 0) {
      seeds.push_back(classes_.of(node.outputs[0], dim));
    }
    if (node.kind != NodeKind::kOp) continue;
    const Rule& rule = rules[node.id];
    if (is_light(graph, node, rule)) continue;
    for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
      const int dims = classes_.of_factor(node, rule, f);
      if (dims < 0 || rule.factors[f].size == 1) continue;
      seeds.push_back(dims);
      if (rule.factors[f].uneven) uneven_seeds.push_back(dims);
    }
  }
  useful_.assign(classes_.bound(), seeds.empty());
  for (const int seed : seeds) useful_[seed] = true;
  uneven_.assign(classes_.bound(), seeds.empty());
  for (const int seed : uneven_seeds) uneven_[seed] = true;
}

bool IdleDims::is_idle(ValueId value, int dim) const {
  return !useful_[classes_.of(value, dim)];
}

Shape IdleDims::splittable_shape(const Value& value) const {
  Shape shape = value.meta.counts();
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (is_idle(value.id, static_cast<int>(dim))) shape[dim] = 1;
  }
  return shape;
}

void IdleDims::remove_from(RulesByNode& rules, Exclusions& left_out) const {
  for (const Node& node : graph_.nodes()) {
    if (node.kind != NodeKind::kOp) continue;
    Rule& rule = rules[node.id];
    if (!is_light(graph_, node, rule)) continue;
    for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
      const int dims = classes_.of_factor(node, rule, f);
      Factor& factor = rule.factors[f];
      if (dims >= 0 && !uneven_[dims]) factor.uneven = false;
      if (dims < 0 || useful_[dims] || factor.size == 1) continue;
      left_out.push_back({node.id, ExclusionReason::kIdleDim, factor.name});
      factor.keep_whole();
    }
  }
}

}  // namespace tensoropt
