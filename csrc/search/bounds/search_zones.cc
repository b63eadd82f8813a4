#include "search/bounds/search_zones.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tensoropt {

std::vector<Point> zones_between(const std::vector<Point>& known,
                                 double epsilon, double memory_limit) {
  std::vector<Point> zones;
  const double factor = 1 + epsilon;
  for (std::size_t i = 0; i + 1 < known.size(); ++i) {
    const Point here = known[i];
    const Point next = known[i + 1];
    if (here.memory > memory_limit) break;
    Point zone{next.memory / factor, here.time / factor};
    if (next.memory > memory_limit) {
      // Just above the limit, which itself is allowed.
      const double limit =
          std::nextafter(memory_limit, std::numeric_limits<double>::infinity());
      zone.memory = std::min(limit, next.memory);
    }
    zones.push_back(zone);
  }
  return zones;
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
      joined.back().memory = zones[i].memory;
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
