// Bounds under a few weightings for every cell of every table: the first, quick
// look that leaves few cells to the others (see bounds.h).
#pragma once

#include <cstdint>
#include <vector>

#include "search/corner_limits.h"
#include "search/min_plus.h"

namespace tensoropt {

class DenseBounds {
 public:
  // Takes the weightings that are tightest for the corners of `limits`.
  DenseBounds(const MinPlusPlan& plan, const CornerLimits& limits,
              int num_threads);

  // Whether a strategy through this cell may lie below a corner. `limits` must
  // be over the same weightings.
  bool may_improve(int id, std::size_t cell, const CornerLimits& limits) const;
  // Estimated number of cells of all tables for which it may.
  std::int64_t estimate_alive(const CornerLimits& limits) const;

 private:
  const MinPlusPlan& plan_;
  std::vector<std::size_t> chosen_;
  // By expression; by cell and chosen weighting: the least cost of a strategy.
  std::vector<std::vector<float>> costs_;
};

}  // namespace tensoropt
