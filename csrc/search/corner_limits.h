// The corners (see corners.h) as limits on weighted sums.
//
// A strategy below a corner costs less than the corner under every weighting.
// So whatever is known to cost more under some weighting cannot lead there.
#pragma once

#include <cstdint>
#include <vector>

#include "search/corners.h"
#include "search/weights.h"

namespace tensoropt {

class CornerLimits {
 public:
  CornerLimits() = default;
  // `optima[w]` is the least cost of any strategy under weighting w. With a
  // finite `slack`, only strategies count that cost at most (1 + slack) times
  // that, under the weighting where their corner is closest to it. Much more is
  // then ruled out, though not by proof.
  CornerLimits(const std::vector<Weights>& weights,
               const std::vector<double>& optima,
               const std::vector<Point>& corners, double slack);

  std::size_t num_weights() const { return weights_.size(); }
  Weights weights(std::size_t w) const { return weights_[w]; }
  std::uint64_t all() const;  // a bit for every corner

  // Of the corners `open`, those with a limit above `cost` under weighting w.
  std::uint64_t above(std::size_t w, double cost, std::uint64_t open) const;

  // The weightings under which corners are closest to the optimum, those of
  // the farthest corners first, then others from end to end; `count` at most.
  std::vector<std::size_t> tightest(std::size_t count) const;

 private:
  double limit(std::size_t w, std::size_t corner) const {
    return limits_[w * num_corners_ + corner];
  }

  std::vector<Weights> weights_;
  std::size_t num_corners_ = 0;
  std::vector<double> limits_;         // by weighting and corner
  std::vector<double> highest_;        // by weighting
  std::vector<std::size_t> tightest_;  // by corner
  std::vector<double> distance_;       // by corner, relative, when tightest
};

}  // namespace tensoropt
