// What strategies of a problem cost at least, from a few weighted sums of
// memory and time: much sooner known than their frontier, which is close to it.
//
//   const SupportingLines lines = supporting_lines(problem, {.most = 9});
//   lines.least_seconds(8e9);  // of every strategy with at most 8 GB
//   lines.steps({8e9, 16e9});  // as points, for those who look at these limits
//
// Each weighting takes one min-plus pass (weighted_probe.h). Several problems
// are looked at as one, whose parts do not touch: what they have alike, such as
// blocks of one model, is looked at once.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "problem/frontier.h"
#include "problem/problem.h"
#include "search/bounds/weights.h"

namespace tensoropt {

class SupportingLines {
 public:
  // No strategy at all.
  SupportingLines() = default;
  // Every strategy costs at least `optima[i]` under `weights[i]`.
  SupportingLines(std::vector<Weights> weights, std::vector<double> optima);

  bool has_strategies() const { return !weights_.empty(); }
  double least_bytes() const { return least_bytes_; }
  // Of every strategy with at most so many bytes; infinite if there is none.
  double least_seconds(double most_bytes) const;

  // Points of which the last one with less memory than a limit, of these
  // ascending ones or none, takes no more time than any strategy with less
  // memory than that; none if there is no strategy.
  std::vector<Point> steps(const std::vector<double>& limits) const;

 private:
  std::vector<Weights> weights_;
  std::vector<double> optima_;
  double least_bytes_ = 0;
};

struct SupportingLinesOptions {
  std::size_t most = 9;  // weightings
  // Between strategies that differ by no more than this nothing is looked for.
  double epsilon = 0;
  double memory_limit = std::numeric_limits<double>::infinity();
  int num_threads = 1;
};

// The one that no strategy is below where finding more would take very long.
SupportingLines supporting_lines(const Problem& problem,
                                 const SupportingLinesOptions& options);

// Of each problem, all under the same weightings.
std::vector<SupportingLines> supporting_lines_of(
    const std::vector<Problem>& problems,
    const SupportingLinesOptions& options);

}  // namespace tensoropt
