// What is still worth finding, given some known strategies.
//
// A strategy is worth finding only if no known one is, up to a factor
// 1 + epsilon, at least as good in both costs. Such strategies lie below and
// to the left of one of the corners between neighbouring known ones:
//
//   time
//    |  k---+ c     k, l  known strategies
//    |      |       c     corner: below and left of it, neither k nor l
//    |      l             is as good (drawn for epsilon = 0)
//    +---------- memory
#pragma once

#include <vector>

#include "problem/frontier.h"

namespace tensoropt {

// The corners between strategies of these costs, sorted by memory. The first
// must have the least memory and the last the least time of all strategies;
// above `memory_limit` nothing is asked for, and no strategy there counts.
// Between two that are closer than epsilon there is a corner too: it lies below
// both, where strategies are that are better than either.
std::vector<Point> corners_between(const std::vector<Point>& known,
                                   double epsilon, double memory_limit);

// Joins the closest neighbours to larger corners until there are at most
// `most`.
std::vector<Point> join_corners(std::vector<Point> corners, std::size_t most);

// How many are looked at at a time.
inline constexpr std::size_t kMaxCorners = 64;

// How far two neighbours are apart, relatively, in the cost in which they are
// closer: with an epsilon larger than this, one of them stands for all between.
double gap_between(Point a, Point b);

}  // namespace tensoropt
