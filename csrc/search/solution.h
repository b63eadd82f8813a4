// Carries out one schedule: from symbolic expressions to a frontier, and back
// from a point of it to a strategy.
//
//   Solution solution(problem, {}, {});
//   solution.solve({.epsilon = 0.01, .memory_limit = 8e10, .num_threads = 2});
//   solution.unroll(0);
//
// First the best strategies under some weightings are found (first_look.h),
// then what improves on them (corner_search.h).
#pragma once

#include <cstdint>
#include <vector>

#include "search/evaluation.h"
#include "search/expression.h"
#include "search/first_look.h"
#include "search/problem.h"
#include "search/schedule.h"
#include "search/strategy.h"
#include "search/table.h"

namespace tensoropt {

struct SolveOptions {
  double epsilon = 0;
  double memory_limit = 0;
  int num_threads = 1;
  bool use_bounds = true;
};

struct SolveStats {
  double bound_seconds = 0;
  double product_seconds = 0;
  int passes = 0;  // of the first look
  int rounds = 0;  // of the search for more
  std::int64_t cells = 0;
  std::int64_t cells_alive = 0;  // in the last round
  int products = 0;
  ProductStats product;
};

class Solution {
 public:
  // `fixed[n] >= 0` gives node n that config; empty fixes nothing. Planning
  // happens here, computing in solve().
  Solution(const Problem& problem, const std::vector<int>& fixed,
           const ScheduleOptions& options);

  const Schedule& schedule() const { return schedule_; }
  // Different products in the schedule.
  int num_products() const;

  void solve(const SolveOptions& options);

  // Whether there is any strategy, within the memory limit or not.
  bool feasible() const { return !known_.empty(); }
  double min_memory() const { return known_.front().cost.memory; }
  // The final frontier; empty if nothing fits the memory limit.
  const std::vector<Point>& points() const { return points_; }
  // Relative error that was really made, at most the epsilon allowed.
  double error() const { return error_; }
  const SolveStats& stats() const { return stats_; }

  Strategy unroll(int point) const;

 private:
  void load_tables();
  void solve_bounded(const MinPlusPlan& plan, const SolveOptions& options,
                     FirstLook& look, Evaluation& evaluation);
  void solve_unbounded(const SolveOptions& options, FirstLook& look,
                       Evaluation& evaluation);
  int root() const { return schedule_.terms[schedule_.root].expression; }

  const Problem problem_;  // keeps the tables alive
  const Domains domains_;
  ExpressionPool pool_;
  Schedule schedule_;

  std::vector<Table> base_;  // tables of the problem, by expression
  std::vector<KnownStrategy> known_;
  std::vector<Point> points_;  // the first of known_, by number
  double error_ = 0;
  SolveStats stats_;
};

}  // namespace tensoropt
