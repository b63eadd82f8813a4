#include "search/bounds/search_zones.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace tensoropt {

namespace {

// Where the zone of what is within the limit ends.
double just_above(double limit) {
  return std::nextafter(limit, std::numeric_limits<double>::infinity());
}

}  // namespace

bool MemoryLimits::between(double memory, double next_memory) const {
  if (memory > most) return false;
  return !only_picks || std::ranges::any_of(picks, [&](double limit) {
    return memory <= limit && limit < next_memory;
  });
}

std::vector<Point> zones_between(const std::vector<Point>& known,
                                 double epsilon, const MemoryLimits& limits) {
  std::vector<Point> zones;
  const double factor = 1 + epsilon;
  for (std::size_t i = 0; i + 1 < known.size(); ++i) {
    const Point here = known[i];
    const Point next = known[i + 1];
    if (!limits.between(here.memory, next.memory)) continue;
    Point zone{next.memory / factor, here.time / factor};
    for (const double limit : limits.picks) {
      if (here.memory <= limit && limit < next.memory) {
        zone.memory = std::max(zone.memory, just_above(limit));
      }
    }
    zone.memory = std::min(zone.memory, just_above(limits.most));
    zones.push_back(zone);
  }
  return zones;
}

std::optional<Point> zone_within(const std::vector<Point>& known,
                                 double epsilon, double limit) {
  const auto above = std::upper_bound(
      known.begin(), known.end(), limit,
      [](double memory, Point point) { return memory < point.memory; });
  if (above == known.begin() || above == known.end()) return std::nullopt;
  return Point{just_above(limit), std::prev(above)->time / (1 + epsilon)};
}

std::vector<Point> join_zones(std::vector<Point> zones, std::size_t most) {
  if (zones.size() <= most) return zones;
  // What joining zone i to the one before it adds, relatively.
  std::vector<std::pair<double, std::size_t>> costs;
  for (std::size_t i = 1; i < zones.size(); ++i) {
    costs.emplace_back(gap_between(zones[i - 1], zones[i]), i);
  }
  std::sort(costs.begin(), costs.end());
  std::vector<bool> joins(zones.size(), false);
  for (std::size_t i = 0; i < zones.size() - most; ++i) {
    joins[costs[i].second] = true;
  }
  std::vector<Point> joined;
  for (std::size_t i = 0; i < zones.size(); ++i) {
    if (joins[i]) {
      joined.back().memory = std::max(joined.back().memory, zones[i].memory);
    } else {
      joined.push_back(zones[i]);
    }
  }
  return joined;
}

double gap_between(Point a, Point b) {
  const auto relative = [](double difference, double base) {
    return base > 0 ? difference / base : std::numeric_limits<double>::max();
  };
  return std::min(relative(b.memory - a.memory, a.memory),
                  relative(a.time - b.time, b.time));
}

}  // namespace tensoropt
