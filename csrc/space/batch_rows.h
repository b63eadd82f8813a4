// Which dims of the values of a graph have the rows of the batch.
//
//   const auto rows = find_batch_rows(graph, rules, registry, rows_dim);
//   rows[x].dim();       // 1, of (time, batch, features); -1: it has no rows
//   rows[loss].depends;  // a scalar has none, but depends on them
//
// A dim of an output has rows if the rule binds it to a factor to which a dim
// of an operand with rows is bound. Where an operator moves or mixes rows, as a
// cumulative sum does, or has no rule, so that it runs whole, a dim of the same
// place and size is taken for the same. A sum over rows, or a reshape after
// which rows are no blocks, leaves none.
#pragma once

#include <functional>
#include <vector>

#include "rules/registry.h"
#include "sharding/layout.h"

namespace tensoropt {

struct BatchRows {
  bool depends = false;  // on what has rows
  DimSet dims = 0;

  // The first of the dims; -1: there is none.
  int dim() const;
};

// The dim of an input that has rows; -1: it has none.
using RowsDim = std::function<int(const Node&)>;

// By value. O(all dims of all operands and outputs, for each operator).
IndexedVector<ValueId, BatchRows> find_batch_rows(const Graph& graph,
                                                  const RulesByNode& rules,
                                                  const Registry& registry,
                                                  const RowsDim& rows_dim);

}  // namespace tensoropt
