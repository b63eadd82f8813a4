#include "search/bounds/weights.h"

#include <algorithm>

#include "search/bounds/search_zones.h"

namespace tensoropt {

namespace {

// Whether b is on or above the line from a to c.
bool is_above(Point a, Point b, Point c) {
  return (b.memory - a.memory) * (c.time - a.time) <=
         (b.time - a.time) * (c.memory - a.memory);
}

}  // namespace

Weights equal_weights(Point a, Point b) {
  const Weights weights{.memory = a.time - b.time, .time = b.memory - a.memory};
  const double cost = weights.of(a);
  return {.memory = weights.memory / cost, .time = weights.time / cost};
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
    weights.push_back(equal_weights(hull[i], hull[i + 1]));
  }
  return weights;
}

}  // namespace tensoropt
