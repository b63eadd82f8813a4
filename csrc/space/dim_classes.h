// Tensor dims that are split together: (value, dim) pairs that the rule of some
// operator binds to one factor, and all that follows from that.
//
//   DimClasses classes(graph, rules);
//   classes.of(x, 0) == classes.of(y, 0);   // the batch of both
//   classes.of_factor(node, rule, 2);       // the class of a factor
#pragma once

#include <vector>

#include "rules/rule.h"

namespace tensoropt {

class DimClasses {
 public:
  // O(all dims of all values) up to the inverse Ackermann function.
  DimClasses(const Graph& graph, const RulesByNode& rules);

  // Classes are numbered below this, not all numbers are used.
  int bound() const { return static_cast<int>(class_.size()); }
  int of(ValueId value, int dim) const { return class_[first_[value] + dim]; }
  // -1 if the factor is bound to no dim.
  int of_factor(const Node& node, const Rule& rule, int factor) const;

 private:
  std::vector<int> first_;  // by value: key of its dim 0
  std::vector<int> class_;  // by key
};

}  // namespace tensoropt
