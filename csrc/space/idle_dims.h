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
#include "space/batch_rows.h"
#include "space/dim_classes.h"
#include "space/exclusions.h"

namespace tensoropt {

class IdleDims {
 public:
  // O(all dims of all values) up to the inverse Ackermann function.
  IdleDims(const Graph& graph, const RulesByNode& rules,
           const RowsDim& rows_dim);

  const DimClasses& classes() const { return classes_; }
  bool is_idle(ValueId value, int dim) const;

  // The shape of a value in units, with idle dims made unsplittable (size 1).
  Shape splittable_shape(const Value& value) const;

  // Makes idle factors of light operators unsplittable; adds them to
  // `left_out`. Of the others, light operators split into parts that differ
  // only what some heavy one may split so.
  void remove_from(RulesByNode& rules, Exclusions& left_out) const;

 private:
  const Graph& graph_;
  DimClasses classes_;
  std::vector<bool> useful_;  // by class
  std::vector<bool> uneven_;  // by class: parts may differ
};

}  // namespace tensoropt
