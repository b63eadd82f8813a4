#include "space/dim_classes.h"

#include <numeric>

namespace tensoropt {

namespace {

// Calls visit(value, dim) for the dims that are bound to the factor.
template <typename Visit>
void visit_dims(const Node& node, const Rule& rule, int factor, Visit visit) {
  const auto look = [&](const std::vector<TensorRule>& tensors,
                        const std::vector<ValueId>& values) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      for (std::size_t dim = 0; dim < tensors[i].dims.size(); ++dim) {
        if (tensors[i].dims[dim] == factor) {
          visit(values[i], static_cast<int>(dim));
        }
      }
    }
  };
  look(rule.operands, node.operands);
  look(rule.outputs, node.outputs);
}

}  // namespace

DimClasses::DimClasses(const Graph& graph, const std::vector<Rule>& rules) {
  int count = 0;
  for (const Value& value : graph.values()) {
    first_.push_back(count);
    count += value.meta.rank();
  }
  parent_.resize(count);
  std::iota(parent_.begin(), parent_.end(), 0);
  for (const Node& node : graph.nodes()) {
    if (node.kind != NodeKind::kOp) continue;
    const Rule& rule = rules[node.id];
    for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
      const int root = of_factor(node, rule, f);
      visit_dims(node, rule, f, [&](ValueId value, int dim) {
        parent_[of(value, dim)] = find(root);
      });
    }
  }
}

int DimClasses::of_factor(const Node& node, const Rule& rule,
                          int factor) const {
  int found = -1;
  visit_dims(node, rule, factor, [&](ValueId value, int dim) {
    if (found < 0) found = of(value, dim);
  });
  return found;
}

int DimClasses::find(int key) const {
  while (parent_[key] != key) {
    parent_[key] = parent_[parent_[key]];
    key = parent_[key];
  }
  return key;
}

}  // namespace tensoropt
