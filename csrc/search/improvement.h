// Whether a problem has strategies beside those that are known of others:
//
//   options.others = known;
//   may_improve(problem, options);  // false: the known stand for all of them
//
// The frontier says so, but most often a few weighted sums of memory and time
// do (weighted_probe.h), without bounds of cells and without products: either
// no strategy is in a zone beside the known ones, or one that is best under a
// weighting is.
#pragma once

#include "problem/problem.h"
#include "search/frontier_tracking.h"

namespace tensoropt {

// False only if for every strategy within the memory limit one of
// `options.others` is within epsilon of it, and where it is within one of the
// `pick_limits`, one within that limit too.
bool may_improve(const Problem& problem, const SearchOptions& options);

}  // namespace tensoropt
