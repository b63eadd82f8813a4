// The corners (see corners.h) as limits on weighted sums.
//
// A strategy below a corner costs less than the corner under every weighting.
// So whatever is known to cost more under some weighting cannot lead there.
#pragma once

#include <cstdint>
#include <vector>

#include "search/bounds/search_zones.h"
#include "search/bounds/weights.h"

namespace tensoropt {

class CornerLimits {
 public:
  CornerLimits() = default;
  // `optima[w]` is the least cost of any strategy under weighting w. With a
  // finite `slack`, only strategies count that cost at most (1 + slack) times
  // that, under the weighting where their corner is closest to it. Much more is
  // then ruled out, though not by proof. What is compared with the limits may
  // be off by `rounding`, a relative error.
  CornerLimits(const std::vector<Weights>& weights,
               const std::vector<double>& optima,
               const std::vector<Point>& corners, double slack,
               double rounding);

  std::size_t num_weights() const { return weights_.size(); }
  Weights weights(std::size_t w) const { return weights_[w]; }
  std::uint64_t all() const;  // a bit for every corner

  // For every corner the weighting under which it is closest to the optimum.
  const std::vector<std::size_t>& tightest() const { return tightest_; }

  // The corners with a limit above `cost` under weighting w. O(log corners).
  std::uint64_t above(std::size_t w, double cost) const;

 private:
  void sort(std::size_t w, const std::vector<double>& limits);

  std::vector<Weights> weights_;
  std::size_t num_corners_ = 0;
  std::vector<std::size_t> tightest_;  // by corner
  // For every weighting the limits of its corners, ascending; and the corners
  // from each of them on, then none.
  std::vector<double> limits_;
  std::vector<std::uint64_t> corners_;
};

}  // namespace tensoropt
