// Says which parts of which tables can still improve on known strategies.
//
//   Bounds bounds(graph, probe, probe_limits, limits, workers);
//   bounds.tighten(limits);                       // these, or lower ones
//   bounds.table(id).rank(cell) < 0;              // the cell is ruled out
//   bounds.table(id).may_improve(rank, point);    // and this point is not
//
// For each of several weighted sums of memory and time there is a lower bound
// of what a strategy through a cell of a table costs. A cell, a pair of cells
// or a point for which every zone has a weighting under which that is
// too much is dropped, and nothing is lost: whatever it could lead to is
// matched by a known strategy (see search_zones.h).
//
// First a few weightings go over all cells (weighted_probe.h); those that are
// left are usually few, and all weightings are then computed for them together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/workers.h"
#include "search/bounds/min_plus.h"
#include "search/bounds/weighted_probe.h"
#include "search/bounds/zone_limits.h"

namespace tensoropt {

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
    return rank >= 0 && zones_[rank] != 0 ? rank : -1;
  }
  // Whether a point in an alive cell may lead to a strategy in a zone.
  bool may_improve(int rank, Point point) const;
  // Whether any sum of a point of `left` and one of `right` may.
  bool may_improve(int rank, const TableBounds& left, int left_rank,
                   const TableBounds& right, int right_rank) const;

  std::size_t num_alive() const;

 private:
  friend class Bounds;
  friend class SparseMinPlus;

  std::uint64_t open_zones(int rank, const ZoneLimits& limits) const;
  std::span<const float> inside(int rank) const { return row(inside_, rank); }
  std::span<const float> outside(int rank) const { return row(outside_, rank); }
  std::span<const float> row(const std::vector<float>& values, int rank) const {
    const std::size_t width = limits_->num_weights();
    return std::span(values).subspan(rank * width, width);
  }

  const ZoneLimits* limits_ = nullptr;
  std::vector<std::int32_t> ranks_;   // by cell
  std::vector<std::uint32_t> cells_;  // by rank
  std::vector<std::uint64_t> zones_;  // by rank: zones still possible
  // By rank and weighting: the least cost in the table, and of the rest.
  std::vector<float> inside_;
  std::vector<float> outside_;
};

class Bounds {
 public:
  // `probe_limits` are over the weightings of `probe`, `limits` over any.
  Bounds(const MinPlusGraph& graph, const WeightedProbe& probe,
         const ZoneLimits& probe_limits, const ZoneLimits& limits,
         Workers& workers);
  Bounds(const Bounds&) = delete;  // tables point to limits_
  Bounds& operator=(const Bounds&) = delete;

  // Replaces the limits by lower ones over the same weightings.
  void tighten(const ZoneLimits& limits);
  // Estimated number of cells of all tables that such limits would leave.
  std::int64_t estimate_alive(const ZoneLimits& limits) const;

  const TableBounds& table(int id) const { return tables_[id]; }
  std::int64_t num_alive() const;  // cells of all tables not ruled out

 private:
  const MinPlusGraph& graph_;
  Workers& workers_;
  ZoneLimits limits_;
  std::vector<TableBounds> tables_;  // by expression
};

}  // namespace tensoropt
