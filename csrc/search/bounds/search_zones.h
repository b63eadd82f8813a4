// What is still worth finding, given some known strategies.
//
// A strategy is worth finding only if no known one is, up to a factor
// 1 + epsilon, at least as good in both costs. Such strategies lie in one of
// the search zones between neighbouring known ones. A zone is all that is below
// and to the left of its corner, the point by which it is given (the local
// upper bound of multi-objective optimisation):
//
//   time
//    |  k---+ c     k, l  known strategies
//    |      |       c     a corner: below and left of it, neither k nor l
//    |      l             is as good (drawn for epsilon = 0)
//    +---------- memory
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "problem/frontier.h"

namespace tensoropt {

// In bytes. What needs just as much is within a limit.
struct MemoryLimits {
  // Nothing above it is searched for.
  double most = std::numeric_limits<double>::infinity();
  // Within each of these the fastest strategy is searched for. A finite `most`
  // is one of them.
  std::vector<double> picks = {};
  // Whether nothing else is searched for.
  bool only_picks = false;

  // Whether something is searched for between two neighbours of these bytes.
  bool between(double memory, double next_memory) const;
};

// The zones between strategies of these costs, sorted by memory. The first
// must have the least memory and the last the least time of all strategies;
// strategies above the greatest limit do not count, nor gaps without a limit if
// only picks do.
// Between two that are closer than epsilon there is a zone too: its corner lies
// below both, where strategies are that are better than either.
std::vector<Point> zones_between(const std::vector<Point>& known,
                                 double epsilon, const MemoryLimits& limits);

// The zone of strategies within the limit that are faster than the fastest
// known one, by more than epsilon. No slower one with more memory stands for
// them. None if nothing fits, or nothing is faster. It lies inside the zones
// between the same or fewer strategies, if the limit is one of the picks.
std::optional<Point> zone_within(const std::vector<Point>& known,
                                 double epsilon, double limit);

// Joins the closest neighbours to larger zones until there are at most
// `most`.
std::vector<Point> join_zones(std::vector<Point> zones, std::size_t most);

// How many zones are searched at a time.
inline constexpr std::size_t kMaxZones = 64;

// How far two neighbours are apart, relatively, in the cost in which they are
// closer: with an epsilon larger than this, one of them stands for all between.
double gap_between(Point a, Point b);

}  // namespace tensoropt
