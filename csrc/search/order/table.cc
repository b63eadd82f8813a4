#include "search/order/table.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "common/check.h"

namespace tensoropt {

namespace {

// Appends one cell of the problem to the table, if it has any choice.
void add_cell(std::uint32_t index, std::span<const Choice> choices,
              FrontierBuilder& builder, Table& table) {
  if (choices.empty()) return;
  table.cells.push_back(index);
  table.first.push_back(static_cast<std::uint32_t>(table.points.size()));
  if (choices.size() == 1) {
    const Choice& only = choices.front();
    table.points.push_back({only.memory, only.time},
                           std::bit_cast<std::uint32_t>(only.tag), 0);
    return;
  }
  for (const Choice& choice : choices) {
    builder.add({choice.memory, choice.time},
                std::bit_cast<std::uint32_t>(choice.tag), 0);
  }
  builder.move_to(table.points);
}

void load_edge(const EdgeTable& edge, const std::vector<int>& sources,
               const std::vector<int>& targets, FrontierBuilder& builder,
               Table& table) {
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
      add_cell(
          static_cast<std::uint32_t>(s * targets.size() + t),
          edge.all_choices().subspan(first, row.first_choice[i + 1] - first),
          builder, table);
    }
  }
}

bool contains(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// Axes of `mine` whose label fulfils the predicate, by ascending label.
template <typename Predicate>
std::vector<int> axes_where(const std::vector<int>& mine, Predicate&& wanted) {
  std::vector<int> axes;
  for (int i = 0; i < static_cast<int>(mine.size()); ++i) {
    if (wanted(mine[i])) axes.push_back(i);
  }
  std::sort(axes.begin(), axes.end(),
            [&](int a, int b) { return mine[a] < mine[b]; });
  return axes;
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

// Finds the place of cells in a matrix.
class Placement {
 public:
  struct Place {
    std::uint32_t row;  // batches included
    std::uint32_t column;
  };

  Placement(const std::vector<int>& dims, const Arrangement& arrangement)
      : dims_(dims),
        batch_(strides(arrangement.batch, dims, batches)),
        row_(strides(arrangement.row, dims, rows)),
        column_(strides(arrangement.column, dims, columns)) {
    for (std::uint32_t& stride : batch_) stride *= rows;
  }

  Place of(std::uint32_t index) const {
    Place place{0, 0};
    for (std::size_t axis = dims_.size(); axis-- > 0;) {
      const std::uint32_t at = index % dims_[axis];
      index /= dims_[axis];
      place.row += at * (batch_[axis] + row_[axis]);
      place.column += at * column_[axis];
    }
    return place;
  }

  int batches = 1;
  int rows = 1;
  int columns = 1;

 private:
  const std::vector<int>& dims_;
  std::vector<std::uint32_t> batch_;
  std::vector<std::uint32_t> row_;
  std::vector<std::uint32_t> column_;
};

void sort_rows(Matrix& matrix) {
  const auto by_column = [](const Matrix::Entry& a, const Matrix::Entry& b) {
    return a.column < b.column;
  };
  for (std::size_t row = 0; row + 1 < matrix.row_first.size(); ++row) {
    const auto begin = matrix.entries.begin() + matrix.row_first[row];
    const auto end = matrix.entries.begin() + matrix.row_first[row + 1];
    if (!std::is_sorted(begin, end, by_column)) {
      std::sort(begin, end, by_column);
    }
  }
}

}  // namespace

std::uint32_t Table::index_of_point(std::uint32_t point) const {
  const auto after = std::upper_bound(first.begin(), first.end(), point);
  return cells[after - first.begin() - 1];
}

Table load_table(const Expression& expression, const Domains& domains) {
  Table table;
  table.dims = expression.dims;
  FrontierBuilder builder;
  if (expression.kind == Expression::Kind::kUnit) {
    const Choice nothing;
    for (int i = 0; i < table.dims.front(); ++i) {
      add_cell(i, {&nothing, 1}, builder, table);
    }
  } else if (expression.kind == Expression::Kind::kNode) {
    const auto& configs = domains.configs_of(expression.domains[0]);
    for (std::size_t i = 0; i < configs.size(); ++i) {
      add_cell(static_cast<std::uint32_t>(i),
               expression.node->choices(configs[i]), builder, table);
    }
  } else {
    load_edge(*expression.edge, domains.configs_of(expression.domains[0]),
              domains.configs_of(expression.domains[1]), builder, table);
  }
  table.first.push_back(static_cast<std::uint32_t>(table.points.size()));
  std::iota(table.points.right.begin(), table.points.right.end(), 0);
  return table;
}

Arrangement arrangement_of(const std::vector<int>& mine,
                           const std::vector<int>& other, int num_outputs) {
  const auto is_output = [&](int label) { return label < num_outputs; };
  return {
      .batch = axes_where(mine,
                          [&](int label) {
                            return is_output(label) && contains(other, label);
                          }),
      .row = axes_where(mine,
                        [&](int label) {
                          return is_output(label) && !contains(other, label);
                        }),
      .column = axes_where(mine, [&](int label) { return !is_output(label); }),
  };
}

DenseMatrix arrange_dense(const std::vector<int>& dims,
                          const Arrangement& arrangement) {
  DenseMatrix matrix;
  strides(arrangement.batch, dims, matrix.batches);
  strides(arrangement.row, dims, matrix.rows);
  strides(arrangement.column, dims, matrix.columns);
  std::vector<int> axes = arrangement.batch;
  axes.insert(axes.end(), arrangement.row.begin(), arrangement.row.end());
  axes.insert(axes.end(), arrangement.column.begin(), arrangement.column.end());
  if (std::is_sorted(axes.begin(), axes.end())) return matrix;
  std::vector<int> all(dims.size());
  std::iota(all.begin(), all.end(), 0);
  int volume = 1;
  const std::vector<std::uint32_t> stride = strides(all, dims, volume);
  // The axes grow from the last to the first.
  matrix.cells = {0};
  matrix.cells.reserve(volume);
  for (const int axis : axes) {
    std::vector<std::uint32_t> longer;
    longer.reserve(matrix.cells.size() * dims[axis]);
    for (const std::uint32_t cell : matrix.cells) {
      for (int i = 0; i < dims[axis]; ++i) {
        longer.push_back(cell + i * stride[axis]);
      }
    }
    matrix.cells = std::move(longer);
  }
  return matrix;
}

Matrix arrange(const Table& table, const Arrangement& arrangement) {
  const Placement placement(table.dims, arrangement);
  Matrix matrix;
  matrix.batches = placement.batches;
  matrix.rows = placement.rows;
  matrix.columns = placement.columns;
  std::vector<Placement::Place> where;
  for (const std::uint32_t cell : table.cells) {
    where.push_back(placement.of(cell));
  }
  matrix.row_first.assign(matrix.batches * matrix.rows + 1, 0);
  for (const auto& place : where) ++matrix.row_first[place.row + 1];
  std::partial_sum(matrix.row_first.begin(), matrix.row_first.end(),
                   matrix.row_first.begin());
  std::vector<std::uint32_t> next = matrix.row_first;
  matrix.entries.resize(where.size());
  for (std::size_t cell = 0; cell < where.size(); ++cell) {
    const std::uint32_t first = table.first[cell];
    const std::uint32_t last = table.first[cell + 1];
    matrix.entries[next[where[cell].row]++] = {
        where[cell].column,
        table.cells[cell],
        first,
        last,
        {table.points.memory[first], table.points.time[last - 1]}};
  }
  sort_rows(matrix);
  return matrix;
}

}  // namespace tensoropt
