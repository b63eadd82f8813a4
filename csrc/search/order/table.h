// A sparse table of frontiers over the configs of a few nodes, the value of an
// expression, and its arrangement as matrices for a product.
#pragma once

#include <cstdint>
#include <vector>

#include "problem/frontier.h"
#include "search/order/domains.h"
#include "search/order/expression.h"

namespace tensoropt {

// Cells by ascending row-major index over the axes; only non-empty ones are
// stored. In a table of the problem, `points.left` holds the tag of the choice
// and `points.right` the position of the point as loaded; in a product, they
// are points of the two operands.
struct Table {
  std::vector<int> dims;
  std::vector<std::uint32_t> cells;  // row-major indices
  std::vector<std::uint32_t> first;  // cell -> first point; one more at the end
  Frontier points;

  std::size_t num_cells() const { return cells.size(); }
  // Which cell a point is in, as row-major index. O(log cells).
  std::uint32_t index_of_point(std::uint32_t point) const;
};

// Reads a table of the problem (or a unit table) in the domains of its ends.
// Choices that another one dominates are dropped.
Table load_table(const Expression& expression, const Domains& domains);

// The cells and points of a table for which `wanted(cell, point)`.
template <typename Predicate>
Table filter(const Table& table, Predicate&& wanted) {
  Table result;
  result.dims = table.dims;
  const Frontier& points = table.points;
  for (std::size_t i = 0; i < table.num_cells(); ++i) {
    const std::size_t before = result.points.size();
    for (std::uint32_t p = table.first[i]; p < table.first[i + 1]; ++p) {
      const Point point{points.memory[p], points.time[p]};
      if (!wanted(table.cells[i], point)) continue;
      result.points.push_back(point, points.left[p], points.right[p]);
    }
    if (result.points.size() == before) continue;
    result.cells.push_back(table.cells[i]);
    result.first.push_back(static_cast<std::uint32_t>(before));
  }
  result.first.push_back(static_cast<std::uint32_t>(result.points.size()));
  return result;
}

// A table seen as `batches` matrices of rows x columns, stored by rows. Points
// stay where they are.
struct Matrix {
  struct Entry {
    std::uint32_t column;
    std::uint32_t cell;   // row-major index in the table
    std::uint32_t first;  // points [first, last) of the table
    std::uint32_t last;
    Point ideal;  // least memory, least time
  };
  int batches = 1;
  int rows = 1;
  int columns = 1;
  std::vector<std::uint32_t> row_first;  // batch * rows + row -> first entry
  std::vector<Entry> entries;

  std::span<const Entry> row(int index) const {
    return std::span(entries).subspan(row_first[index],
                                      row_first[index + 1] - row_first[index]);
  }
};

// The axes of `table` that make up batch, row and column, most significant
// first; together they must be all axes.
struct Arrangement {
  std::vector<int> batch;
  std::vector<int> row;
  std::vector<int> column;
};
Matrix arrange(const Table& table, const Arrangement& arrangement);

// How an operand of a product is arranged: outputs that both have are batch,
// other outputs row, the rest columns; by ascending label, which is the order
// that the labels of a product put the result in.
Arrangement arrangement_of(const std::vector<int>& mine,
                           const std::vector<int>& other, int num_outputs);

// The same for a dense table: for every place of the matrix, by rows, the
// row-major index over `dims`. No cells: they are in this order already.
struct DenseMatrix {
  int batches = 1;
  int rows = 1;
  int columns = 1;
  std::vector<std::uint32_t> cells;
};
DenseMatrix arrange_dense(const std::vector<int>& dims,
                          const Arrangement& arrangement);

}  // namespace tensoropt
