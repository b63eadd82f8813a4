// Splits the error that the caller allows over the steps that thin frontiers.
//
// A step that thins by delta_v makes every strategy at most (1 + delta_v)
// times as expensive. Along a path from a table of the problem to the root
// these factors multiply; side by side they do not, as the relative error of a
// sum is at most that of its worst part. Step v therefore gets
//   1 + delta_v = (1 + epsilon) ^ (1 / L_v),
// L_v being the number of thinning steps on the longest path through v: on
// every path the exponents add up to at most 1.
#pragma once

#include <vector>

#include "search/order/expression.h"

namespace tensoropt {

// The delta of every expression that `root` is made of (0 for the others).
std::vector<double> split_error(const ExpressionPool& pool, int root,
                                double epsilon);

}  // namespace tensoropt
