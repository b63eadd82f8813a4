// A weighted sum of memory and time: one objective instead of two.
#pragma once

#include <vector>

#include "problem/frontier.h"

namespace tensoropt {

struct Weights {
  double memory = 0;
  double time = 0;
  double of(Point point) const {
    return memory * point.memory + time * point.time;
  }
  friend bool operator==(const Weights&, const Weights&) = default;
};

// Under which both cost 1. `a` must have less memory and more time than `b`.
Weights equal_weights(Point a, Point b);

// Memory alone, time alone, and the weightings along the edges of the lower
// convex hull of the points, which must be sorted by memory, none dominated: at
// most `most`, those of the widest edges.
std::vector<Weights> hull_weights(const std::vector<Point>& points,
                                  std::size_t most);

}  // namespace tensoropt
