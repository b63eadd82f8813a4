#include "search/corners.h"

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
    } else if (corner.memory <= here.memory || corner.time <= next.time) {
      continue;  // only a strategy better than a known one could be there
    }
    corners.push_back(corner);
  }
  return corners;
}

std::vector<Point> join_corners(std::vector<Point> corners) {
  while (corners.size() > kMaxCorners) {
    std::vector<Point> joined;
    for (std::size_t i = 0; i < corners.size(); i += 2) {
      const Point last = corners[std::min(i + 1, corners.size() - 1)];
      joined.push_back({last.memory, corners[i].time});
    }
    corners = std::move(joined);
  }
  return corners;
}

double gap_between(Point a, Point b) {
  const auto relative = [](double difference, double base) {
    return base > 0 ? difference / base : std::numeric_limits<double>::max();
  };
  return std::min(relative(b.memory - a.memory, a.memory),
                  relative(a.time - b.time, b.time));
}

}  // namespace tensoropt
