// Carries out one schedule: from symbolic expressions to frontiers, and back
// from a point of the final frontier to a strategy.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "search/expression.h"
#include "search/problem.h"
#include "search/product.h"
#include "search/schedule.h"
#include "search/strategy.h"
#include "search/table.h"

namespace tensoropt {

struct SolveOptions {
  double epsilon = 0;
  double memory_limit = 0;
  int num_threads = 1;
};

class Solution {
 public:
  // `fixed[n] >= 0` gives node n that config; empty fixes nothing. Planning
  // happens here, computing in solve().
  Solution(const Problem& problem, const std::vector<int>& fixed,
           const ScheduleOptions& options);

  const Domains& domains() const { return domains_; }
  const Schedule& schedule() const { return schedule_; }
  const ExpressionPool& pool() const { return pool_; }

  void solve(const SolveOptions& options);

  // The final frontier; empty if nothing fits the memory limit.
  FrontierView points() const;
  // Relative error that thinning really made, at most the epsilon allowed.
  double error() const { return error_; }
  const ProductStats& stats() const { return stats_; }
  int num_products() const { return num_products_; }

  Strategy unroll(int point) const;

 private:
  void compute(int id, const SolveOptions& options, double delta,
               double memory_limit);
  std::vector<double> memory_limits(const std::vector<int>& order,
                                    double memory_limit) const;

  const Problem problem_;  // keeps the tables alive
  Domains domains_;
  ExpressionPool pool_;
  Schedule schedule_;
  std::vector<Table> tables_;   // by expression
  std::vector<double> errors_;  // by expression
  double error_ = 0;
  ProductStats stats_;
  int num_products_ = 0;
};

}  // namespace tensoropt
