// Finds the strategies of a Solution: from symbolic expressions to a frontier.
//
//   Solver solver(solution, {.thin_epsilon = 0.01, .memory_limit = 8e10});
//   solver.look();          // the best strategies under some weightings
//   solver.search(given);   // all that improves on them and on `given`
//
// Tables of costs and bounds live as long as the solver, what was found is kept
// in the solution. See first_look.h and corner_search.h.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "problem/propagation.h"
#include "search/bounds/min_plus.h"
#include "search/bounds/weighted_probe.h"
#include "search/products/product_evaluator.h"
#include "search/round_runner.h"
#include "search/solution.h"

namespace tensoropt {

struct SolveOptions {
  // Relative errors: known strategies stand for others within the first, the
  // products of frontiers are thinned by the second.
  double known_epsilon = 0;
  double thin_epsilon = 0;
  double memory_limit = std::numeric_limits<double>::infinity();
  int num_threads = 1;
  bool use_bounds = true;
};

struct SolveStats {
  double bound_seconds = 0;
  double product_seconds = 0;
  int passes = 0;                // of the first look
  int rounds = 0;                // of the search for more
  std::int64_t cells_alive = 0;  // in the last round
  int products = 0;
  ProductStats product;
};

class Solver {
 public:
  // The solution must outlive the solver.
  Solver(Solution& solution, const SolveOptions& options);

  // Finds the best strategies under a few weightings, which suit `given`, the
  // costs of others; none if there are none at all.
  void look(const std::vector<Point>& given, std::size_t max_questions,
            Depth depth);

  // By node of the solution's problem: the configs of strategies that may
  // improve on `given` and on those of the first look, as far down as the look
  // went. Nothing if there are no such strategies; then there is nothing to
  // search either.
  std::optional<std::vector<ConfigMask>> promising(
      const std::vector<Point>& given);

  // Finds what improves on the strategies of the first look and on `given`: all
  // together, they are within error() of every strategy. The look was whole.
  void search(const std::vector<Point>& given);

  // Relative; at most both errors of the options together.
  double error() const { return error_; }
  const SolveStats& stats() const { return stats_; }

 private:
  void search_bounded(const std::vector<Point>& given);
  void search_unbounded();
  CornerSearch corner_search(const std::vector<Point>& given);
  ConfigMask promising(int expression, std::size_t axis,
                       const CornerLimits& limits) const;

  Solution& solution_;
  const SolveOptions options_;
  MinPlusPlan plan_;
  std::optional<FirstLook> look_;
  Evaluation evaluation_;
  double error_ = 0;
  SolveStats stats_;
};

}  // namespace tensoropt
