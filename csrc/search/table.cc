#include "search/table.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "common/check.h"

namespace tensoropt {

namespace {

// Appends one cell of the problem to the table, if it has any choice.
void add_cell(std::uint32_t index, std::span<const Choice> choices,
              Table& table) {
  if (choices.empty()) return;
  FrontierBuilder builder(/*delta=*/0);
  for (const Choice& choice : choices) {
    builder.add({choice.memory, choice.time},
                std::bit_cast<std::uint32_t>(choice.tag), 0);
  }
  table.cells.push_back(index);
  table.first.push_back(static_cast<std::uint32_t>(table.points.size()));
  builder.move_to(table.points);
}

void load_edge(const EdgeTable& edge, const std::vector<int>& sources,
               const std::vector<int>& targets, Table& table) {
  std::vector<int> position(edge.num_targets(), -1);
  for (std::size_t t = 0; t < targets.size(); ++t) {
    position[targets[t]] = static_cast<int>(t);
  }
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const EdgeTable::Row row = edge.row(sources[s]);
    for (std::size_t i = 0; i < row.targets.size(); ++i) {
      const int t = position[row.targets[i]];
      if (t < 0) continue;
      const std::int64_t first = row.first_choice[i];
      add_cell(static_cast<std::uint32_t>(s * targets.size() + t),
               edge.all_choices().subspan(first,
                                          row.first_choice[i + 1] - first),
               table);
    }
  }
}

// What to multiply each axis' coordinate by to get a position in a group.
std::vector<std::uint32_t> strides(const std::vector<int>& axes,
                                   const std::vector<int>& dims, int& volume) {
  std::vector<std::uint32_t> result(dims.size(), 0);
  volume = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    result[*axis] = volume;
    volume *= dims[*axis];
  }
  return result;
}

struct Place {
  std::uint32_t row;
  std::uint32_t column;
};

// Where every cell of the table goes.
std::vector<Place> places(const Table& table, const Arrangement& arrangement,
                          Matrix& matrix) {
  const std::size_t num_axes = table.dims.size();
  const auto batch = strides(arrangement.batch, table.dims, matrix.batches);
  const auto row = strides(arrangement.row, table.dims, matrix.rows);
  const auto column = strides(arrangement.column, table.dims, matrix.columns);
  std::vector<Place> result;
  result.reserve(table.num_cells());
  for (std::uint32_t index : table.cells) {
    Place place{0, 0};
    for (std::size_t axis = num_axes; axis-- > 0;) {
      const std::uint32_t at = index % table.dims[axis];
      index /= table.dims[axis];
      place.row += at * (batch[axis] * matrix.rows + row[axis]);
      place.column += at * column[axis];
    }
    result.push_back(place);
  }
  return result;
}

}  // namespace

std::uint32_t Table::index_of_point(std::uint32_t point) const {
  const auto after = std::upper_bound(first.begin(), first.end(), point);
  return cells[after - first.begin() - 1];
}

Table load_table(const Expression& expression, const Domains& domains) {
  Table table;
  table.dims = expression.dims;
  if (expression.kind == Expression::Kind::kUnit) {
    const Choice nothing;
    for (int i = 0; i < table.dims.front(); ++i) {
      add_cell(i, {&nothing, 1}, table);
    }
  } else if (expression.kind == Expression::Kind::kNode) {
    const auto& configs = domains.configs_of(expression.domains[0]);
    for (std::size_t i = 0; i < configs.size(); ++i) {
      add_cell(static_cast<std::uint32_t>(i),
               expression.node->choices(configs[i]), table);
    }
  } else {
    load_edge(*expression.edge, domains.configs_of(expression.domains[0]),
              domains.configs_of(expression.domains[1]), table);
  }
  table.first.push_back(static_cast<std::uint32_t>(table.points.size()));
  return table;
}

Matrix arrange(const Table& table, const Arrangement& arrangement) {
  Matrix matrix;
  const std::vector<Place> where = places(table, arrangement, matrix);
  matrix.row_first.assign(matrix.batches * matrix.rows + 1, 0);
  for (const Place& place : where) ++matrix.row_first[place.row + 1];
  std::partial_sum(matrix.row_first.begin(), matrix.row_first.end(),
                   matrix.row_first.begin());
  std::vector<std::uint32_t> next = matrix.row_first;
  matrix.entries.resize(where.size());
  for (std::size_t cell = 0; cell < where.size(); ++cell) {
    const std::uint32_t first = table.first[cell];
    const std::uint32_t last = table.first[cell + 1];
    matrix.entries[next[where[cell].row]++] = {
        where[cell].column, first, last,
        {table.points.memory[first], table.points.time[last - 1]}};
  }
  const auto by_column = [](const Matrix::Entry& a, const Matrix::Entry& b) {
    return a.column < b.column;
  };
  for (std::size_t row = 0; row + 1 < matrix.row_first.size(); ++row) {
    const auto begin = matrix.entries.begin() + matrix.row_first[row];
    const auto end = matrix.entries.begin() + matrix.row_first[row + 1];
    if (!std::is_sorted(begin, end, by_column)) std::sort(begin, end, by_column);
  }
  return matrix;
}

}  // namespace tensoropt
