#include "search/bounds/zone_limits.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/check.h"

namespace tensoropt {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// 0 times infinity is nothing here.
double term(double weight, double cost) {
  return weight == 0 ? 0 : weight * cost;
}

}  // namespace

ZoneLimits::ZoneLimits(const std::vector<Weights>& weights,
                       const std::vector<double>& optima,
                       const std::vector<Point>& zones, double slack,
                       double rounding)
    : weights_(weights), num_zones_(zones.size()) {
  TO_ASSERT(num_zones_ <= kMaxZones, "{} zones", num_zones_);
  std::vector<std::vector<double>> limits(weights.size());
  for (std::size_t w = 0; w < weights.size(); ++w) {
    for (const Point& zone : zones) {
      const double cost = term(weights[w].memory, zone.memory) +
                          term(weights[w].time, zone.time);
      const bool tells = cost < Weights::kMost;
      limits[w].push_back(tells ? cost * (1 + rounding) : kInfinity);
    }
  }
  for (std::size_t zone = 0; zone < num_zones_; ++zone) {
    const auto ratio = [&](std::size_t w) {
      return limits[w][zone] / std::max(optima[w], 1e-300);
    };
    std::size_t tightest = 0;
    for (std::size_t w = 1; w < weights.size(); ++w) {
      if (ratio(w) < ratio(tightest)) tightest = w;
    }
    double& limit = limits[tightest][zone];
    limit = std::min(limit, (1 + slack) * optima[tightest]);
  }
  for (std::size_t w = 0; w < weights.size(); ++w) sort(w, limits[w]);
}

void ZoneLimits::sort(std::size_t w, const std::vector<double>& limits) {
  std::vector<std::size_t> order(num_zones_);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return limits[a] < limits[b];
  });
  zones_.resize((w + 1) * (num_zones_ + 1), 0);
  std::uint64_t* const zones = &zones_[w * (num_zones_ + 1)];
  for (std::size_t i = num_zones_; i-- > 0;) {
    zones[i] = zones[i + 1] | std::uint64_t{1} << order[i];
  }
  for (const std::size_t zone : order) limits_.push_back(limits[zone]);
}

std::uint64_t ZoneLimits::all() const {
  return num_zones_ == 0 ? 0 : ~std::uint64_t{0} >> (kMaxZones - num_zones_);
}

std::uint64_t ZoneLimits::above(std::size_t w, double cost) const {
  const double* first = &limits_[w * num_zones_];
  const std::uint64_t* zones = &zones_[w * (num_zones_ + 1)];
  if (cost < first[0]) return zones[0];
  if (cost >= first[num_zones_ - 1]) return 0;
  // Not std::upper_bound: this compiles to conditional moves.
  std::size_t at = 0;
  for (std::size_t left = num_zones_; left > 0;) {
    const std::size_t half = left / 2;
    const bool below = first[at + half] <= cost;
    at = below ? at + half + 1 : at;
    left = below ? left - half - 1 : half;
  }
  return zones[at];
}

}  // namespace tensoropt
