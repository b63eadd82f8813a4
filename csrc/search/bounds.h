// Says which parts of which tables can still improve on known strategies.
//
// A strategy is worth finding only if no known one is, up to a factor
// 1 + epsilon, at least as good in both costs. Such strategies lie below one
// of the corners between neighbouring known ones:
//
//   time            k, l  known strategies (a supported frontier)
//    |  k---+ c     c     corner: below and left of it, neither k nor l
//    |      |             is as good (drawn for epsilon = 0)
//    |      l
//    +---------- memory
//
// For each of several weighted sums, min-plus passes tell how little a strategy
// through a cell of a table costs at least. A strategy below corner c costs
// less than c under every weighting. A cell (or a point of it) for which every
// corner has a weighting that says otherwise is dropped, and nothing is lost:
// whatever it could lead to is matched by a known strategy.
#pragma once

#include <cstdint>
#include <vector>

#include "search/min_plus.h"
#include "search/supported.h"

namespace tensoropt {

struct Corner {
  double memory = 0;
  double time = 0;
};

// The corners between the known strategies for the given epsilon; at most
// kMaxCorners, neighbouring ones are joined if there are more.
inline constexpr int kMaxCorners = 64;
std::vector<Corner> corners_between(
    const std::vector<KnownStrategy>& strategies, double epsilon,
    double memory_limit);

// The bounds for the table of one expression.
class TableBounds {
 public:
  // Weighted corners, shared by all tables: limits[w * num_corners + c].
  struct Limits {
    std::vector<Weights> weights;
    std::size_t num_corners = 0;
    std::vector<double> values;
  };

  TableBounds() = default;
  explicit TableBounds(const Limits* limits) : limits_(limits) {}

  // No bounds: everything may be needed.
  bool unbounded() const { return limits_ == nullptr; }
  // Position of a cell among those alive, or -1.
  int rank(std::uint32_t cell) const {
    return unbounded() ? 0 : ranks_[cell];
  }
  std::size_t num_cells() const { return ranks_.size(); }
  std::size_t num_alive() const { return num_alive_; }
  // Whether a point in an alive cell may lead to a strategy below a corner.
  bool may_improve(int rank, Point point) const;

 private:
  friend class BoundsBuilder;
  const Limits* limits_ = nullptr;
  std::vector<std::int32_t> ranks_;     // by cell
  std::size_t num_alive_ = 0;
  std::vector<std::uint64_t> corners_;  // by rank: corners still possible
  std::vector<float> outside_;          // by rank and weighting, rounded down
};

class Bounds {
 public:
  // `corners` must not be more than kMaxCorners.
  Bounds(const MinPlusPlan& plan, const std::vector<Weights>& weights,
         const std::vector<Corner>& corners, int num_threads);
  Bounds(const Bounds&) = delete;  // tables point to limits_

  const TableBounds& table(int id) const { return tables_[id]; }
  // Cells of all tables, and those that are left.
  std::int64_t num_cells() const { return num_cells_; }
  std::int64_t num_alive() const { return num_alive_; }

 private:
  TableBounds::Limits limits_;
  std::vector<TableBounds> tables_;  // by expression
  std::int64_t num_cells_ = 0;
  std::int64_t num_alive_ = 0;
};

}  // namespace tensoropt
