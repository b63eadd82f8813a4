// Supported strategies: those that are best for some weighted sum of memory
// and time, the corners of the convex hull of the frontier.
//
// Found by the dichotomic scheme: two neighbours on the hull give the weights
// under which they are equally good; the best strategy under these weights is
// either one of them or lies between. One min-plus pass for each question.
#pragma once

#include <cstdint>
#include <vector>

#include "search/min_plus.h"

namespace tensoropt {

struct SupportedOptions {
  // Neighbours that differ less than this in memory or in time are not asked
  // what is between them.
  double epsilon = 0;
  double memory_limit = 0;  // nothing above is asked for
  int max_passes = 32;
  int num_threads = 1;
};

// A strategy, as the point taken in the table of every term that stands for a
// table of the problem.
struct KnownStrategy {
  Point cost;
  std::vector<std::uint32_t> points;
};

// Those that no other one dominates, sorted by memory.
std::vector<KnownStrategy> pareto(std::vector<KnownStrategy> strategies);

struct SupportedFrontier {
  // Sorted by memory, none dominated. The first has the least memory, the last
  // the least time of all strategies.
  std::vector<KnownStrategy> strategies;
  std::vector<Weights> weights;  // under which was asked
  std::vector<double> optima;    // the least cost under each of them
};

// Returns no strategy if there is none.
SupportedFrontier find_supported(const MinPlusPlan& plan,
                                 const Schedule& schedule,
                                 const SupportedOptions& options);

}  // namespace tensoropt
