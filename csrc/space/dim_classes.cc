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

// A union-find forest with path halving.
class Forest {
 public:
  explicit Forest(int size) : parent_(size) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  int find(int key) {
    while (parent_[key] != key) {
      parent_[key] = parent_[parent_[key]];
      key = parent_[key];
    }
    return key;
  }
  void unite(int key, int with) { parent_[find(key)] = find(with); }

 private:
  std::vector<int> parent_;
};

}  // namespace

DimClasses::DimClasses(const Graph& graph, const RulesByNode& rules) {
  int count = 0;
  for (const Value& value : graph.values()) {
    first_.push_back(count);
    count += value.meta.rank();
  }
  Forest forest(count);
  for (const Node& node : graph.nodes()) {
    if (node.kind != NodeKind::kOp) continue;
    const Rule& rule = rules[node.id];
    for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
      int root = -1;
      visit_dims(node, rule, f, [&](ValueId value, int dim) {
        const int key = first_[value] + dim;
        if (root < 0) root = key;
        forest.unite(key, root);
      });
    }
  }
  for (int key = 0; key < count; ++key) class_.push_back(forest.find(key));
}

int DimClasses::of_factor(const Node& node, const Rule& rule,
                          int factor) const {
  int found = -1;
  visit_dims(node, rule, factor, [&](ValueId value, int dim) {
    if (found < 0) found = of(value, dim);
  });
  return found;
}

}  // namespace tensoropt
