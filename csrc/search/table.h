// A sparse table of frontiers over the configs of a few nodes, the value of an
// expression, and its arrangement as matrices for a product.
#pragma once

#include <cstdint>
#include <vector>

#include "search/domains.h"
#include "search/expression.h"
#include "search/frontier.h"

namespace tensoropt {

// Cells by ascending row-major index over the axes; only non-empty ones are
// stored. In a table of the problem, `points.left` holds the tag of the choice;
// in a product, `left` and `right` are points of the two operands.
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

// A table seen as `batches` matrices of rows x columns, stored by rows. Points
// stay where they are.
struct Matrix {
  struct Entry {
    std::uint32_t column;
    std::uint32_t first;  // points [first, last) of the table
    std::uint32_t last;
    Point ideal;          // least memory, least time
  };
  int batches = 1;
  int rows = 1;
  int columns = 1;
  std::vector<std::uint32_t> row_first;  // batch * rows + row -> first entry
  std::vector<Entry> entries;

  std::span<const Entry> row(int index) const {
    return std::span(entries).subspan(
        row_first[index], row_first[index + 1] - row_first[index]);
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

}  // namespace tensoropt
