// Times of points as they are told, where a step may take longer than the sum
// that was searched.
//
//   Told told = tell(points, [&](int point) { return time_of(point); });
//   told.points[0];   // that of points[told.from[0]]
//   told.ratio(points, least_s);
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "problem/frontier.h"
#include "problem/strategy.h"

namespace tensoropt {

// Seconds that a step of a strategy takes at least, whatever its sum says.
using LeastStepTime = std::function<double(const Strategy&)>;

struct Told {
  std::vector<Point> points;  // by memory ascending, time strictly descending
  std::vector<int> from;      // which point each was

  // By what the bound of a frontier that is searched (`points`) grows when its
  // times are told. No strategy at all takes less than `least_s`, so that none
  // of the memory of points[i] takes less than the larger of that and
  // points[i].time.
  double ratio(std::span<const Point> searched, double least_s) const;
};

// `least_s` is that of the strategy of a point. Points that another one beats
// then are left out.
Told tell(std::span<const Point> searched,
          const std::function<double(int)>& least_s);

}  // namespace tensoropt
