#include "search/products/product.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "common/check.h"

namespace tensoropt {

namespace {

// The inverse of less may be infinite.
constexpr double kLeastUnit = std::numeric_limits<double>::min();

struct Pair {
  double score;
  const Matrix::Entry* left;
  const Matrix::Entry* right;
  Point ideal;
};

// One row of the result.
struct RowResult {
  std::vector<std::uint32_t> cells;
  std::vector<std::uint32_t> counts;
  Frontier points;
  ProductStats stats;
};

class RowProduct {
 public:
  RowProduct(const BoundedTable& left, const BoundedTable& right,
             const TableBounds& bounds, const ProductOptions& options)
      : left_(left),
        right_(right),
        bounds_(bounds),
        builder_(options.tolerance, options.memory_limit, options.most_points) {
  }

  RowResult run(std::span<const Matrix::Entry> left_row, const Matrix& right,
                int batch, std::uint32_t first_cell) {
    result_ = {};
    if (left_row.empty()) return std::move(result_);
    for (int c = 0; c < right.rows; ++c) {
      if (bounds_.rank(first_cell + c) < 0) continue;
      collect(left_row, right.row(batch * right.rows + c));
      if (!pairs_.empty()) compute_cell(first_cell + c);
    }
    return std::move(result_);
  }

 private:
  // The pairs of entries in the same column.
  void collect(std::span<const Matrix::Entry> left,
               std::span<const Matrix::Entry> right) {
    pairs_.clear();
    std::size_t j = 0;
    for (const Matrix::Entry& l : left) {
      while (j < right.size() && right[j].column < l.column) ++j;
      if (j == right.size()) return;
      if (right[j].column != l.column) continue;
      const Point ideal{l.ideal.memory + right[j].ideal.memory,
                        l.ideal.time + right[j].ideal.time};
      pairs_.push_back({0, &l, &right[j], ideal});
    }
  }

  // Best first, both costs measured by the least of their kind.
  void order() {
    Point least = pairs_.front().ideal;
    for (const Pair& pair : pairs_) {
      least.memory = std::min(least.memory, pair.ideal.memory);
      least.time = std::min(least.time, pair.ideal.time);
    }
    const double per_byte = least.memory > kLeastUnit ? 1 / least.memory : 1;
    const double per_second = least.time > kLeastUnit ? 1 / least.time : 1;
    for (Pair& pair : pairs_) {
      pair.score = pair.ideal.memory * per_byte + pair.ideal.time * per_second;
    }
    std::stable_sort(
        pairs_.begin(), pairs_.end(),
        [](const Pair& a, const Pair& b) { return a.score < b.score; });
  }

  bool needed(const Pair& pair, int rank) const {
    return !builder_.refuses(pair.ideal) &&
           bounds_.may_improve(
               rank, left_.bounds, left_.bounds.rank(pair.left->cell),
               right_.bounds, right_.bounds.rank(pair.right->cell));
  }

  void compute_cell(std::uint32_t cell) {
    if (pairs_.size() > 1) order();
    const int rank = bounds_.rank(cell);
    for (const Pair& pair : pairs_) {
      ++result_.stats.pairs;
      if (!needed(pair, rank)) {
        ++result_.stats.pairs_pruned;
        continue;
      }
      builder_.add_product(
          left_.table.points.view(pair.left->first, pair.left->last),
          right_.table.points.view(pair.right->first, pair.right->last));
    }
    builder_.remove_if(
        [&](Point point) { return !bounds_.may_improve(rank, point); });
    const std::size_t before = result_.points.size();
    if (builder_.move_to(result_.points)) result_.stats.thinned = true;
    const std::size_t count = result_.points.size() - before;
    if (count == 0) return;
    result_.cells.push_back(cell);
    result_.counts.push_back(static_cast<std::uint32_t>(count));
    result_.stats.largest_frontier = std::max(result_.stats.largest_frontier,
                                              static_cast<std::int64_t>(count));
  }

  const BoundedTable left_;
  const BoundedTable right_;
  const TableBounds& bounds_;
  FrontierBuilder builder_;
  std::vector<Pair> pairs_;
  RowResult result_;
};

void append_row(RowResult row, Table& table, ProductStats& stats) {
  table.cells.insert(table.cells.end(), row.cells.begin(), row.cells.end());
  for (const std::uint32_t count : row.counts) {
    table.first.push_back(table.first.back() + count);
  }
  table.points.append(row.points);
  stats.add(row.stats);
}

std::vector<int> output_dims(const Table& left, const Table& right,
                             const ProductLabels& labels) {
  std::vector<int> dims(labels.num_outputs);
  for (std::size_t i = 0; i < labels.left.size(); ++i) {
    if (labels.left[i] < labels.num_outputs) {
      dims[labels.left[i]] = left.dims[i];
    }
  }
  for (std::size_t i = 0; i < labels.right.size(); ++i) {
    if (labels.right[i] < labels.num_outputs) {
      dims[labels.right[i]] = right.dims[i];
    }
  }
  return dims;
}

}  // namespace

void ProductStats::add(const ProductStats& other) {
  pairs += other.pairs;
  pairs_pruned += other.pairs_pruned;
  largest_frontier = std::max(largest_frontier, other.largest_frontier);
  thinned = thinned || other.thinned;
}

Table multiply(const BoundedTable& left, const BoundedTable& right,
               const ProductLabels& labels, const TableBounds& bounds,
               const ProductOptions& options, ProductStats& stats) {
  const Matrix l = arrange(left.table, arrangement_of(labels.left, labels.right,
                                                      labels.num_outputs));
  const Matrix r =
      arrange(right.table,
              arrangement_of(labels.right, labels.left, labels.num_outputs));
  TO_ASSERT(l.batches == r.batches && l.columns == r.columns,
            "{} x {} against {} x {}", l.batches, l.columns, r.batches,
            r.columns);
  const int num_rows = l.batches * l.rows;
  std::vector<RowResult> rows(num_rows);
  options.workers.run(num_rows, [&](int row) {
    rows[row] = RowProduct(left, right, bounds, options)
                    .run(l.row(row), r, row / l.rows,
                         static_cast<std::uint32_t>(row) * r.rows);
  });
  Table table;
  table.dims = output_dims(left.table, right.table, labels);
  table.first.push_back(0);
  for (RowResult& row : rows) append_row(std::move(row), table, stats);
  return table;
}

}  // namespace tensoropt
