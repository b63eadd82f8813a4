// Says which parts of which tables can still improve on known strategies.
//
//   Bounds bounds(plan, weights, corners, num_threads);
//   bounds.table(id).rank(cell) < 0;              // the cell is ruled out
//   bounds.table(id).may_improve(rank, point);    // and this point is not
//   bounds.aim(other_corners, slack);             // inside the first ones
//
// For each of several weighted sums of memory and time it is computed how
// little a strategy through a cell of a table costs at least. A strategy below
// a corner (see corners.h) costs less than the corner under every weighting. A
// cell, a pair of cells or a point for which every corner has a weighting that
// says otherwise is dropped, and nothing is lost: whatever it could lead to is
// matched by a known strategy.
//
// First a few weightings go over all cells (min_plus.h); those that are left
// are usually few, and all weightings are then computed for them together.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "search/corners.h"
#include "search/min_plus.h"

namespace tensoropt {

// Weighted corners: limits[w * num_corners + c].
struct CornerLimits {
  CornerLimits() = default;
  CornerLimits(const std::vector<Weights>& weights,
               const std::vector<Point>& corners);

  std::uint64_t all() const;  // a bit for every corner
  // Of the corners `open`, those with a larger value than `value` under
  // weighting w.
  std::uint64_t above(std::size_t w, double value, std::uint64_t open) const;
  double highest(std::size_t w) const;
  // Lowers the limit of every corner, under the weighting where the corner is
  // closest to the optimum, to (1 + slack) times the optimum.
  void tighten(std::span<const float> optima, double slack);

  std::vector<Weights> weights;
  std::size_t num_corners = 0;
  std::vector<double> values;
};

// The bounds for the table of one expression.
class TableBounds {
 public:
  // Nothing is known: everything may be needed.
  TableBounds() = default;

  bool unbounded() const { return limits_ == nullptr; }
  // Position of a cell among those alive, or -1.
  int rank(std::uint32_t cell) const {
    if (unbounded()) return 0;
    const int rank = ranks_[cell];
    return rank >= 0 && corners_[rank] != 0 ? rank : -1;
  }
  // Whether a point in an alive cell may lead to a strategy below a corner.
  bool may_improve(int rank, Point point) const;
  // Whether any sum of a point of `left` and one of `right` may.
  bool may_improve(int rank, const TableBounds& left, int left_rank,
                   const TableBounds& right, int right_rank) const;

  std::size_t num_cells() const { return ranks_.size(); }
  std::size_t num_alive() const;

 private:
  friend class Bounds;
  friend class SparseSweep;

  std::span<const float> inside(int rank) const { return row(inside_, rank); }
  std::span<const float> outside(int rank) const { return row(outside_, rank); }
  std::span<const float> row(const std::vector<float>& values, int rank) const {
    const std::size_t width = limits_->weights.size();
    return std::span(values).subspan(rank * width, width);
  }

  const CornerLimits* limits_ = nullptr;
  std::vector<std::int32_t> ranks_;     // by cell
  std::vector<std::uint32_t> cells_;    // by rank
  std::vector<std::uint64_t> corners_;  // by rank: corners still possible
  // By rank and weighting: the least cost in the table, and of the rest.
  std::vector<float> inside_;
  std::vector<float> outside_;
};

class Bounds {
 public:
  Bounds(const MinPlusPlan& plan, const std::vector<Weights>& weights,
         const std::vector<Point>& corners, int num_threads);
  Bounds(const Bounds&) = delete;  // tables point to limits_
  Bounds& operator=(const Bounds&) = delete;

  // Replaces the corners. What lies below the new ones must lie below the
  // first ones. With a finite `slack`, only strategies count that cost at most
  // (1 + slack) times the least possible under the weighting that is tightest
  // at their corner: then much more is ruled out, but not by proof.
  void aim(const std::vector<Point>& corners,
           double slack = std::numeric_limits<double>::infinity());

  const TableBounds& table(int id) const { return tables_[id]; }
  std::int64_t num_cells() const;  // of all tables
  std::int64_t num_alive() const;  // not ruled out

 private:
  void aim_table(TableBounds& table) const;

  const MinPlusPlan& plan_;
  const int num_threads_;
  CornerLimits limits_;
  std::vector<TableBounds> tables_;  // by expression
};

}  // namespace tensoropt
