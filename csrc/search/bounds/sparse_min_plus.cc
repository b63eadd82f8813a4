#include "search/bounds/sparse_min_plus.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tensoropt {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Calls body(left rank, right rank) for entries in the same column.
template <typename Entries, typename Body>
void for_each_pair(Entries left, Entries right, Body&& body) {
  auto r = right.begin();
  for (const auto& l : left) {
    while (r != right.end() && r->column < l.column) ++r;
    if (r == right.end()) return;
    if (r->column == l.column) body(l.rank, r->rank);
  }
}

}  // namespace

SparseMinPlus::SparseMinPlus(const MinPlusGraph& graph,
                             const ZoneLimits& limits, Workers& workers,
                             std::vector<TableBounds>& tables)
    : graph_(graph),
      limits_(limits),
      workers_(workers),
      tables_(tables),
      operands_(graph.pool().size()) {}

template <typename CellAt>
SparseMinPlus::Rows SparseMinPlus::make_rows(const TableBounds& table,
                                             int num_rows, int row_length,
                                             CellAt&& cell_at) {
  Rows rows;
  for (int row = 0; row < num_rows; ++row) {
    rows.first.push_back(static_cast<std::uint32_t>(rows.entries.size()));
    for (int x = 0; x < row_length; ++x) {
      const std::int32_t rank = table.ranks_[cell_at(row, x)];
      if (rank >= 0) rows.entries.push_back({x, rank});
    }
  }
  rows.first.push_back(static_cast<std::uint32_t>(rows.entries.size()));
  return rows;
}

void SparseMinPlus::lower(float* into, const float* a, const float* b) const {
  for (std::size_t w = 0; w < limits_.num_weights(); ++w) {
    const float sum = a[w] + b[w];
    into[w] = sum < into[w] ? sum : into[w];
  }
}

void SparseMinPlus::load(int id) {
  TableBounds& bounds = tables_[id];
  const Table& table = graph_.table(id);
  for (std::size_t i = 0; i < table.num_cells(); ++i) {
    const int rank = bounds.ranks_[table.cells[i]];
    if (rank < 0) continue;
    float* into = values(bounds.inside_, rank);
    for (std::uint32_t p = table.first[i]; p < table.first[i + 1]; ++p) {
      const Point point{table.points.memory[p], table.points.time[p]};
      for (std::size_t w = 0; w < limits_.num_weights(); ++w) {
        into[w] =
            std::min(into[w], bound_as_float(limits_.weights(w).of(point)));
      }
    }
  }
}

void SparseMinPlus::multiply(int id) {
  const MinPlusGraph::Product& product = graph_.product(id);
  const Expression& expression = graph_.pool()[id];
  const TableBounds& left = tables_[expression.left];
  const TableBounds& right = tables_[expression.right];
  Operands& operands = operands_[id];
  operands.left =
      make_rows(left, product.batches * product.rows, product.inner,
                [&](int row, int x) { return product.left_cell(row, x); });
  operands.right =
      make_rows(right, product.batches * product.columns, product.inner,
                [&](int row, int x) { return product.right_cell(row, x); });
  TableBounds& out = tables_[id];
  workers_.run(product.batches * product.rows, [&](int row) {
    const auto l_row = operands.left.row(row);
    for (int c = 0; c < product.columns && !l_row.empty(); ++c) {
      const int rank =
          out.ranks_[static_cast<std::size_t>(row) * product.columns + c];
      if (rank < 0) continue;
      float* into = values(out.inside_, rank);
      const int column = row / product.rows * product.columns + c;
      for_each_pair(l_row, operands.right.row(column), [&](int l, int r) {
        lower(into, left.inside(l).data(), right.inside(r).data());
      });
    }
  });
}

void SparseMinPlus::push_left(int id) {
  const MinPlusGraph::Product& product = graph_.product(id);
  const Expression& expression = graph_.pool()[id];
  TableBounds& left = tables_[expression.left];
  const TableBounds& right = tables_[expression.right];
  const TableBounds& out = tables_[id];
  const Operands& operands = operands_[id];
  workers_.run(product.batches * product.rows, [&](int row) {
    const auto l_row = operands.left.row(row);
    for (int c = 0; c < product.columns && !l_row.empty(); ++c) {
      const int rank =
          out.ranks_[static_cast<std::size_t>(row) * product.columns + c];
      if (rank < 0) continue;
      const float* rest = out.outside(rank).data();
      const int column = row / product.rows * product.columns + c;
      for_each_pair(l_row, operands.right.row(column), [&](int l, int r) {
        lower(values(left.outside_, l), rest, right.inside(r).data());
      });
    }
  });
}

void SparseMinPlus::push_right(int id) {
  const MinPlusGraph::Product& product = graph_.product(id);
  const Expression& expression = graph_.pool()[id];
  const TableBounds& left = tables_[expression.left];
  TableBounds& right = tables_[expression.right];
  const TableBounds& out = tables_[id];
  const Operands& operands = operands_[id];
  workers_.run(product.batches * product.columns, [&](int i) {
    const auto r_row = operands.right.row(i);
    const int batch = i / product.columns;
    for (int a = 0; a < product.rows && !r_row.empty(); ++a) {
      const int row = batch * product.rows + a;
      const int rank =
          out.ranks_[static_cast<std::size_t>(row) * product.columns +
                     i % product.columns];
      if (rank < 0) continue;
      const float* rest = out.outside(rank).data();
      for_each_pair(operands.left.row(row), r_row, [&](int l, int r) {
        lower(values(right.outside_, r), rest, left.inside(l).data());
      });
    }
  });
}

void SparseMinPlus::run() {
  for (const int id : graph_.order()) {
    TableBounds& table = tables_[id];
    table.inside_.assign(table.cells_.size() * limits_.num_weights(),
                         kInfinity);
    table.outside_.assign(table.inside_.size(), kInfinity);
    if (graph_.product(id).id < 0) {
      load(id);
    } else {
      multiply(id);
    }
  }
  std::vector<float>& root = tables_[graph_.root()].outside_;
  std::fill(root.begin(), root.end(), 0.0f);
  for (auto id = graph_.order().rbegin(); id != graph_.order().rend(); ++id) {
    if (graph_.product(*id).id < 0) continue;
    push_left(*id);
    push_right(*id);
    operands_[*id] = {};
  }
}

}  // namespace tensoropt
