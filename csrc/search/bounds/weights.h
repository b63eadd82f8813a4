// A weighted sum of memory and time: one objective instead of two.
#pragma once

#include <cmath>
#include <vector>

#include "problem/frontier.h"

namespace tensoropt {

struct Weights {
  // What a point costs at most: what costs more is no better known to be bad,
  // and infinite is what no strategy costs.
  static constexpr double kMost = 1e305;

  double memory = 0;
  double time = 0;
  double of(Point point) const {
    const double cost = memory * point.memory + time * point.time;
    return cost < kMost ? cost : kMost;
  }
  bool is_usable() const {
    return std::isfinite(memory) && std::isfinite(time) && memory > 0 &&
           time > 0;
  }
  friend bool operator==(const Weights&, const Weights&) = default;
};

// For bounds from below in single precision: what floats cannot tell from
// nothing is nothing, and what is very much leaves room for sums of it.
// Infinite stays infinite. The relative error of all else is that of a float.
float bound_as_float(double cost);

// The weights under which both cost 1. `a` must have less memory and more time
// than `b`. Not finite, or zero, if the two are too far apart to be compared.
Weights equal_weights(Point a, Point b);

// Memory alone, time alone, and the weightings along the edges of the lower
// convex hull of the points, which must be sorted by memory, none dominated: at
// most `most`, those of the widest edges.
std::vector<Weights> hull_weights(const std::vector<Point>& points,
                                  std::size_t most);

// The weightings under which the hull lies farthest above each of the corners,
// which are sorted as the points are: usable ones without repetition that are
// not in `solved`, at most `most`, spread evenly.
std::vector<Weights> weights_above(const std::vector<Point>& points,
                                   const std::vector<Point>& corners,
                                   const std::vector<Weights>& solved,
                                   std::size_t most);

}  // namespace tensoropt
