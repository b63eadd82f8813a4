#include "problem/told.h"

#include <algorithm>
#include <limits>

namespace tensoropt {

Told tell(std::span<const Point> searched,
          const std::function<double(int)>& least_s) {
  Told told;
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < static_cast<int>(searched.size()); ++i) {
    const double time = std::max(searched[i].time, least_s(i));
    if (time >= fastest) continue;
    fastest = time;
    told.points.push_back({searched[i].memory, time});
    told.from.push_back(i);
  }
  return told;
}

double Told::ratio(std::span<const Point> searched, double least_s) const {
  double largest = 1;
  std::size_t at = 0;
  for (const Point& point : searched) {
    while (at + 1 < points.size() && points[at + 1].memory <= point.memory) {
      ++at;
    }
    const double bound = std::max(point.time, least_s);
    if (bound > 0) largest = std::max(largest, points[at].time / bound);
  }
  return largest;
}

}  // namespace tensoropt
