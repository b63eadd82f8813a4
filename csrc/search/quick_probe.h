// A probe of a problem of which nothing but a few weighted sums is asked
// (weighted_probe.h), with all that it refers to.
//
//   const auto quick = QuickProbe::of(problem, Algorithm::kLdp, num_threads);
//   if (quick == nullptr) ...   // tables so large that no look is quick
//   quick->probe().solve(weightings);
#pragma once

#include <memory>

#include "common/workers.h"
#include "problem/problem.h"
#include "search/bounds/min_plus.h"
#include "search/bounds/pass_memory.h"
#include "search/bounds/weighted_probe.h"
#include "search/order/schedule.h"
#include "search/solution.h"

namespace tensoropt {

class QuickProbe {
 public:
  // Null where the tables of the schedule have too many cells.
  static std::unique_ptr<QuickProbe> of(const Problem& problem,
                                        Algorithm algorithm, int num_threads);

  WeightedProbe& probe() { return probe_; }
  const Solution& solution() const { return *solution_; }
  double rounding() const { return graph_.rounding(); }

 private:
  QuickProbe(std::unique_ptr<Solution> solution, int num_threads);

  const std::unique_ptr<Solution> solution_;  // with its tables
  Workers workers_;
  PassMemory memory_;
  const MinPlusGraph graph_;
  WeightedProbe probe_;
};

}  // namespace tensoropt
