#include "search/idle_dims.h"

#include <algorithm>
#include <numeric>

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

IdleDims::IdleDims(const Graph& graph, const std::vector<Rule>& rules,
                   bool sharded_inputs)
    : graph_(graph) {
  int count = 0;
  for (const Value& value : graph.values()) {
    first_.push_back(count);
    count += value.meta.rank();
  }
  parent_.resize(count);
  std::iota(parent_.begin(), parent_.end(), 0);
  std::vector<int> seeds;
  for (const Node& node : graph.nodes()) {
    if (node.kind == NodeKind::kInput && sharded_inputs &&
        graph.output(node, 0).meta.rank() > 0) {
      seeds.push_back(key(node.outputs[0], 0));
    }
    if (node.kind != NodeKind::kOp) continue;
    const Rule& rule = rules[node.id];
    const bool light = is_light(graph, node, rule);
    for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
      const int dim = dim_of_factor(node, rule, f);
      if (dim < 0) continue;
      unite_factor(node, rule, f);
      if (!light && rule.factors[f].size > 1) seeds.push_back(dim);
    }
  }
  useful_.assign(parent_.size(), seeds.empty());
  for (const int seed : seeds) useful_[find(seed)] = true;
}

int IdleDims::find(int key) const {
  while (parent_[key] != key) {
    parent_[key] = parent_[parent_[key]];
    key = parent_[key];
  }
  return key;
}

int IdleDims::dim_of_factor(const Node& node, const Rule& rule,
                            int factor) const {
  const auto look = [&](const std::vector<TensorRule>& tensors,
                        const std::vector<ValueId>& values) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto& dims = tensors[i].dims;
      const auto found = std::find(dims.begin(), dims.end(), factor);
      if (found != dims.end()) {
        return key(values[i], static_cast<int>(found - dims.begin()));
      }
    }
    return -1;
  };
  const int operand = look(rule.operands, node.operands);
  return operand >= 0 ? operand : look(rule.outputs, node.outputs);
}

void IdleDims::unite_factor(const Node& node, const Rule& rule, int factor) {
  const int first = dim_of_factor(node, rule, factor);
  const auto join = [&](const std::vector<TensorRule>& tensors,
                        const std::vector<ValueId>& values) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      for (std::size_t dim = 0; dim < tensors[i].dims.size(); ++dim) {
        if (tensors[i].dims[dim] == factor) {
          unite(key(values[i], static_cast<int>(dim)), first);
        }
      }
    }
  };
  join(rule.operands, node.operands);
  join(rule.outputs, node.outputs);
}

bool IdleDims::is_idle(ValueId value, int dim) const {
  return !useful_[find(key(value, dim))];
}

Shape IdleDims::splittable_shape(const Value& value) const {
  Shape shape = value.meta.shape;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (is_idle(value.id, static_cast<int>(dim))) shape[dim] = 1;
  }
  return shape;
}

void IdleDims::remove_from(std::vector<Rule>& rules) const {
  for (const Node& node : graph_.nodes()) {
    if (node.kind != NodeKind::kOp) continue;
    Rule& rule = rules[node.id];
    if (!is_light(graph_, node, rule)) continue;
    for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
      const int dim = dim_of_factor(node, rule, f);
      if (dim >= 0 && !useful_[find(dim)]) rule.factors[f].size = 1;
    }
  }
}

}  // namespace tensoropt
