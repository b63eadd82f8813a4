// Carries out one schedule: from symbolic expressions to frontiers, and back
// from a point of the final frontier to a strategy.
//
// First the supported strategies are found and what cannot improve on them is
// ruled out (bounds.h); then the products are computed on what is left.
#pragma once

#include <cstdint>
#include <vector>

#include "search/bounds.h"
#include "search/expression.h"
#include "search/problem.h"
#include "search/product.h"
#include "search/schedule.h"
#include "search/strategy.h"
#include "search/supported.h"
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
  int passes = 0;  // min-plus passes that found supported strategies
  int rounds = 0;  // searches below corners
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

  void solve(const SolveOptions& options);

  // Whether there is any strategy, within the memory limit or not.
  bool feasible() const { return feasible_; }
  double min_memory() const { return min_memory_; }
  // The final frontier; empty if nothing fits the memory limit.
  FrontierView points() const { return frontier_.view(); }
  // Relative error that was really made, at most the epsilon allowed.
  double error() const { return error_; }
  const SolveStats& stats() const { return stats_; }

  Strategy unroll(int point) const;

 private:
  void load_tables();
  void solve_bounded(const MinPlusPlan& plan, const SolveOptions& options);
  bool search_below_corners(const MinPlusPlan& plan,
                            const SupportedFrontier& supported,
                            const SolveOptions& options, double epsilon,
                            std::int64_t cells);
  void compute_tables(const Bounds* bounds, const SolveOptions& options,
                      double epsilon);
  void compute_product(int id, const Bounds* bounds,
                       const ProductOptions& options);
  void add_found();
  std::vector<Point> known_costs() const;
  int root() const { return schedule_.terms[schedule_.root].expression; }

  const Problem problem_;  // keeps the tables alive
  Domains domains_;
  ExpressionPool pool_;
  Schedule schedule_;

  std::vector<Table> base_;     // tables of the problem, by expression
  std::vector<Table> tables_;   // what the search left of all tables
  std::vector<double> errors_;  // by expression, made by thinning
  std::vector<KnownStrategy> known_;
  Frontier frontier_;  // left: known strategy
  bool feasible_ = false;
  double min_memory_ = 0;
  double error_ = 0;
  SolveStats stats_;
};

}  // namespace tensoropt
