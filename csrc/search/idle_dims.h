// Which tensor dims are worth splitting.
//
// Light operators (element-wise, views, joins) run in the layout in which a
// heavy one (product, attention, normalisation, look-up, loss) gives or wants
// the tensor. A dim that no heavy operator splits, seen through the light ones,
// is idle: splitting it would take a reshard on the way in and one on the way
// out. Idle dims are left out of the space.
#pragma once

#include <vector>

#include "rules/config.h"

namespace tensoropt {

class IdleDims {
 public:
  // O(all dims of all values) up to the inverse Ackermann function.
  IdleDims(const Graph& graph, const std::vector<Rule>& rules,
           bool sharded_inputs);

  bool is_idle(ValueId value, int dim) const;

  // The shape of a value with idle dims made unsplittable (size 1).
  Shape splittable_shape(const Value& value) const;

  // Makes idle factors of light operators unsplittable.
  void remove_from(std::vector<Rule>& rules) const;

 private:
  int key(ValueId value, int dim) const { return first_[value] + dim; }
  int find(int key) const;
  void unite(int a, int b) { parent_[find(a)] = find(b); }
  // One dim of an operator that is indexed by the factor; -1 if there is none.
  int dim_of_factor(const Node& node, const Rule& rule, int factor) const;
  void unite_factor(const Node& node, const Rule& rule, int factor);

  const Graph& graph_;
  std::vector<int> first_;           // by value: key of its dim 0
  mutable std::vector<int> parent_;  // union-find forest
  std::vector<bool> useful_;         // by root
};

}  // namespace tensoropt
