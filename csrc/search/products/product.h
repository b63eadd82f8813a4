// Computes products of tables: the inner loop of every elimination.
//
// Both operands are seen as matrices whose columns are the summed-out configs
// x. Cell (a, c) of the result is the frontier of all left(a, x) + right(c, x).
// A pair whose ideal point (sum of least memories, sum of least times) is
// dominated by what was already found is skipped before its points are formed;
// the pairs with the best ideal points come first so that most are.
//
// Cells and points that cannot lead to anything new (`bounds`, see bounds.h)
// are left out.
//
// Rows of the result are shared out to threads; each row depends on nothing
// but the operands, so the result does not depend on the number of threads.
#pragma once

#include <cstdint>

#include "common/workers.h"
#include "search/bounds/bounds.h"
#include "search/order/expression.h"
#include "search/order/table.h"

namespace tensoropt {

struct ProductOptions {
  Tolerance tolerance;                   // within which results are thinned
  double memory_limit = 0;               // points above are dropped
  std::size_t most_points = kAllPoints;  // of a cell, whatever the tolerance
  Workers& workers;
};

struct ProductStats {
  std::int64_t pairs = 0;         // pairs of frontiers met
  std::int64_t pairs_pruned = 0;  // skipped by their ideal point
  std::int64_t largest_frontier = 0;
  bool thinned = false;  // thinning dropped a point

  void add(const ProductStats& other);
};

// A table and what may be left out of it.
struct BoundedTable {
  const Table& table;
  const TableBounds& bounds;
};

Table multiply(const BoundedTable& left, const BoundedTable& right,
               const ProductLabels& labels, const TableBounds& bounds,
               const ProductOptions& options, ProductStats& stats);

}  // namespace tensoropt
