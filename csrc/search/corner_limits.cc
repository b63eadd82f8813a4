#include "search/corner_limits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "common/check.h"

namespace tensoropt {

namespace {

// Limits are raised by this factor: bounds are sums of many floats.
constexpr double kRounding = 1e-5;

// 0 times infinity is nothing here.
double term(double weight, double cost) {
  return weight == 0 ? 0 : weight * cost;
}

// From one end to the other, evenly spread.
std::vector<std::size_t> spread(const std::vector<Weights>& weights,
                                std::size_t count) {
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return weights[a].memory * weights[b].time >
           weights[b].memory * weights[a].time;
  });
  if (order.size() <= count) return order;
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < count; ++i) {
    chosen.push_back(order[i * (order.size() - 1) / (count - 1)]);
  }
  return chosen;
}

}  // namespace

CornerLimits::CornerLimits(const std::vector<Weights>& weights,
                           const std::vector<double>& optima,
                           const std::vector<Point>& corners, double slack)
    : weights_(weights), num_corners_(corners.size()) {
  TO_ASSERT(num_corners_ <= kMaxCorners, "{} corners", num_corners_);
  for (const Weights& w : weights) {
    for (const Point& corner : corners) {
      limits_.push_back(
          (term(w.memory, corner.memory) + term(w.time, corner.time)) *
          (1 + kRounding));
    }
  }
  for (std::size_t corner = 0; corner < num_corners_; ++corner) {
    const auto ratio = [&](std::size_t w) {
      return limit(w, corner) / std::max(optima[w], 1e-300);
    };
    std::size_t tightest = 0;
    for (std::size_t w = 1; w < weights.size(); ++w) {
      if (ratio(w) < ratio(tightest)) tightest = w;
    }
    tightest_.push_back(tightest);
    distance_.push_back(ratio(tightest) - 1);
    double& tight_limit = limits_[tightest * num_corners_ + corner];
    tight_limit = std::min(tight_limit, (1 + slack) * optima[tightest]);
  }
  for (std::size_t w = 0; w < weights.size(); ++w) {
    const auto first = limits_.begin() + w * num_corners_;
    highest_.push_back(
        num_corners_ == 0 ? 0 : *std::max_element(first, first + num_corners_));
  }
}

std::uint64_t CornerLimits::all() const {
  return num_corners_ == kMaxCorners ? ~std::uint64_t{0}
                                     : (std::uint64_t{1} << num_corners_) - 1;
}

std::uint64_t CornerLimits::above(std::size_t w, double cost,
                                  std::uint64_t open) const {
  if (!(cost < highest_[w])) return 0;
  std::uint64_t result = open;
  for (; open != 0; open &= open - 1) {
    const int corner = std::countr_zero(open);
    if (!(cost < limit(w, corner))) result &= ~(std::uint64_t{1} << corner);
  }
  return result;
}

std::vector<std::size_t> CornerLimits::tightest(std::size_t count) const {
  std::vector<std::size_t> by_distance(num_corners_);
  std::iota(by_distance.begin(), by_distance.end(), 0);
  std::stable_sort(by_distance.begin(), by_distance.end(),
                   [this](std::size_t a, std::size_t b) {
                     return distance_[a] > distance_[b];
                   });
  std::vector<std::size_t> chosen;
  const auto add = [&](std::size_t w) {
    const bool is_new =
        std::find(chosen.begin(), chosen.end(), w) == chosen.end();
    if (is_new && chosen.size() < count) chosen.push_back(w);
  };
  for (const std::size_t corner : by_distance) add(tightest_[corner]);
  for (const std::size_t w : spread(weights_, count)) add(w);
  return chosen;
}

}  // namespace tensoropt
