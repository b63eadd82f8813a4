#include "search/bounds/weights.h"

#include <algorithm>
#include <limits>

#include "search/bounds/search_zones.h"

namespace tensoropt {

namespace {

// Whether b is on or above the line from a to c.
bool is_above(Point a, Point b, Point c) {
  return (b.memory - a.memory) * (c.time - a.time) <=
         (b.time - a.time) * (c.memory - a.memory);
}

}  // namespace

float bound_as_float(double cost) {
  constexpr double kNothing = 1e-30;
  constexpr double kVeryMuch = 1e31;
  if (cost < kNothing) return 0;
  if (std::isinf(cost)) return std::numeric_limits<float>::infinity();
  return static_cast<float>(std::min(cost, kVeryMuch));
}

// Without products of two costs, which may be too large or too small.
Weights equal_weights(Point a, Point b) {
  const double bytes_per_second = (b.memory - a.memory) / (a.time - b.time);
  const double memory = a.memory + a.time * bytes_per_second;
  return {.memory = 1 / memory, .time = bytes_per_second / memory};
}

std::vector<Weights> hull_weights(const std::vector<Point>& points,
                                  std::size_t most) {
  std::vector<Point> hull;
  for (const Point& point : points) {
    while (hull.size() > 1 &&
           is_above(hull[hull.size() - 2], hull.back(), point)) {
      hull.pop_back();
    }
    hull.push_back(point);
  }
  std::vector<std::size_t> edges;
  for (std::size_t i = 0; i + 1 < hull.size(); ++i) edges.push_back(i);
  std::stable_sort(edges.begin(), edges.end(),
                   [&](std::size_t i, std::size_t j) {
                     return gap_between(hull[i], hull[i + 1]) >
                            gap_between(hull[j], hull[j + 1]);
                   });
  std::vector<Weights> weights{{.memory = 1, .time = 0},
                               {.memory = 0, .time = 1}};
  for (const std::size_t i : edges) {
    if (weights.size() == most) break;
    const Weights between = equal_weights(hull[i], hull[i + 1]);
    if (between.can_be_asked()) weights.push_back(between);
  }
  return weights;
}

}  // namespace tensoropt
