// Computes the tables of all products, within given bounds.
//
//   ProductEvaluator evaluator(pool, root, base_tables, workers);
//   evaluator.run(&bounds, {.epsilon = 0.01});
//   evaluator.strategies(schedule);          // the frontier of the root
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "common/workers.h"
#include "search/bounds/bounds.h"
#include "search/order/expression.h"
#include "search/order/schedule.h"
#include "search/order/table.h"
#include "search/products/product.h"

namespace tensoropt {

struct EvaluationOptions {
  double epsilon = 0;  // the error of thinning, at most
  // Points above are left out.
  double memory_limit = std::numeric_limits<double>::infinity();
  // All of the error is in time: for every strategy there is a point with no
  // more memory. Otherwise it is in both.
  bool keep_memory = false;
  // No cell keeps more points; the error then has no bound.
  std::size_t most_points = kAllPoints;
};

class ProductEvaluator {
 public:
  // `base` holds the tables of the problem, by expression. The arguments must
  // outlive the evaluator.
  ProductEvaluator(const ExpressionPool& pool, int root,
                   const std::vector<Table>& base, Workers& workers);

  // What the bounds rule out is left out; null: nothing.
  void run(const Bounds* bounds, const EvaluationOptions& options);

  // What this run found: the frontier of the root, and how it was made.
  std::vector<KnownStrategy> strategies(const Schedule& schedule) const;
  // The relative error that thinning made in this run.
  double error() const { return errors_[root_]; }

  // Over all runs.
  const ProductStats& stats() const { return stats_; }
  int num_products() const { return num_products_; }

 private:
  std::vector<std::uint32_t> trace(const Schedule& schedule,
                                   std::uint32_t point) const;
  void multiply_operands(int id, const Bounds* bounds,
                         const ProductOptions& options);

  const ExpressionPool& pool_;
  const int root_;
  const std::vector<Table>& base_;
  Workers& workers_;
  const std::vector<int> order_;
  std::vector<Table> tables_;   // by expression
  std::vector<double> errors_;  // by expression
  ProductStats stats_;
  int num_products_ = 0;
};

}  // namespace tensoropt
