// The zones (see search_zones.h) as limits on weighted sums.
//
// A strategy in a zone costs less than its corner under every weighting.
// So whatever is known to cost more under some weighting cannot lead there.
#pragma once

#include <cstdint>
#include <vector>

#include "search/bounds/search_zones.h"
#include "search/bounds/weights.h"

namespace tensoropt {

class ZoneLimits {
 public:
  ZoneLimits() = default;
  // `optima[w]` is the least cost of any strategy under weighting w. With a
  // finite `slack`, only strategies count that cost at most (1 + slack) times
  // that, under the weighting where the corner is closest to it. Much more is
  // then ruled out, though not by proof. What is compared with the limits may
  // be off by `rounding`, a relative error.
  ZoneLimits(const std::vector<Weights>& weights,
             const std::vector<double>& optima, const std::vector<Point>& zones,
             double slack, double rounding);

  std::size_t num_weights() const { return weights_.size(); }
  Weights weights(std::size_t w) const { return weights_[w]; }
  std::uint64_t all() const;  // a bit for every zone

  // The zones with a limit above `cost` under weighting w. O(log zones).
  std::uint64_t above(std::size_t w, double cost) const;

 private:
  void sort(std::size_t w, const std::vector<double>& limits);

  std::vector<Weights> weights_;
  std::size_t num_zones_ = 0;
  // For every weighting the limits of its zones, ascending; and the zones
  // from each of them on, then none.
  std::vector<double> limits_;
  std::vector<std::uint64_t> zones_;
};

}  // namespace tensoropt
