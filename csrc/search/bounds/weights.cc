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

std::vector<Point> lower_hull(const std::vector<Point>& points) {
  std::vector<Point> hull;
  for (const Point& point : points) {
    while (hull.size() > 1 &&
           is_above(hull[hull.size() - 2], hull.back(), point)) {
      hull.pop_back();
    }
    hull.push_back(point);
  }
  return hull;
}

// Whether the ray from nothing through `corner` leaves the hull behind `point`.
bool is_passed(Point point, Point corner) {
  return point.time * corner.memory >= corner.time * point.memory;
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
  const std::vector<Point> hull = lower_hull(points);
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
    if (between.is_usable()) weights.push_back(between);
  }
  return weights;
}

// By duality it is the edge that the ray from nothing through the corner meets.
std::vector<Weights> weights_above(const std::vector<Point>& points,
                                   const std::vector<Point>& corners,
                                   const std::vector<Weights>& solved,
                                   std::size_t most) {
  const std::vector<Point> hull = lower_hull(points);
  std::vector<Weights> found;
  std::size_t edge = 0;
  for (const Point corner : corners) {
    while (edge + 2 < hull.size() && is_passed(hull[edge + 1], corner)) ++edge;
    if (edge + 1 >= hull.size()) break;
    const Weights weights = equal_weights(hull[edge], hull[edge + 1]);
    const bool known =
        (!found.empty() && found.back() == weights) ||
        std::find(solved.begin(), solved.end(), weights) != solved.end();
    if (!known && weights.is_usable()) found.push_back(weights);
  }
  if (found.size() <= most) return found;
  std::vector<Weights> spread;
  for (std::size_t i = 0; i < most; ++i) {
    spread.push_back(found[(2 * i + 1) * found.size() / (2 * most)]);
  }
  return spread;
}

}  // namespace tensoropt
