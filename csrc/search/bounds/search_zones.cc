#include "search/bounds/search_zones.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tensoropt {

std::vector<Point> corners_between(const std::vector<Point>& known,
                                   double epsilon, double memory_limit) {
  std::vector<Point> corners;
  const double factor = 1 + epsilon;
  for (std::size_t i = 0; i + 1 < known.size(); ++i) {
    const Point here = known[i];
    const Point next = known[i + 1];
    if (here.memory > memory_limit) break;
    Point corner{next.memory / factor, here.time / factor};
    if (next.memory > memory_limit) {
      // Just above the limit, which itself is allowed.
      const double limit =
          std::nextafter(memory_limit, std::numeric_limits<double>::infinity());
      corner.memory = std::min(limit, next.memory);
    }
    corners.push_back(corner);
  }
  return corners;
}

std::vector<Point> join_corners(std::vector<Point> corners, std::size_t most) {
  if (corners.size() <= most) return corners;
  // What joining corner i to the one before it adds, relatively.
  std::vector<std::pair<double, std::size_t>> costs;
  for (std::size_t i = 1; i < corners.size(); ++i) {
    costs.emplace_back(gap_between(corners[i - 1], corners[i]), i);
  }
  std::sort(costs.begin(), costs.end());
  std::vector<bool> joins(corners.size(), false);
  for (std::size_t i = 0; i < corners.size() - most; ++i) {
    joins[costs[i].second] = true;
  }
  std::vector<Point> joined;
  for (std::size_t i = 0; i < corners.size(); ++i) {
    if (joins[i]) {
      joined.back().memory = corners[i].memory;
    } else {
      joined.push_back(corners[i]);
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
