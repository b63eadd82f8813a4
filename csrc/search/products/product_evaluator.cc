#include "search/products/product_evaluator.h"

#include <algorithm>
#include <utility>

#include "search/products/budget.h"

namespace tensoropt {

namespace {

const TableBounds& bounds_of(const Bounds* bounds, int id) {
  static const TableBounds kNone;
  return bounds == nullptr ? kNone : bounds->table(id);
}

}  // namespace

ProductEvaluator::ProductEvaluator(const ExpressionPool& pool, int root,
                                   const std::vector<Table>& base,
                                   Workers& workers)
    : pool_(pool),
      root_(root),
      base_(base),
      workers_(workers),
      order_(reachable(pool, root)),
      tables_(pool.size()),
      errors_(pool.size(), 0) {}

void ProductEvaluator::run(const Bounds* bounds,
                           const EvaluationOptions& options) {
  const std::vector<double> delta = split_error(pool_, root_, options.epsilon);
  for (const int id : order_) {
    if (pool_[id].kind == Expression::Kind::kProduct) {
      const double in_memory = options.keep_memory ? 0 : delta[id];
      multiply_operands(id, bounds,
                        {{in_memory, delta[id]},
                         options.memory_limit,
                         options.most_points,
                         workers_});
      continue;
    }
    const TableBounds& table = bounds_of(bounds, id);
    tables_[id] = filter(base_[id], [&](std::uint32_t cell, Point point) {
      const int rank = table.rank(cell);
      return rank >= 0 && table.may_improve(rank, point);
    });
  }
}

void ProductEvaluator::multiply_operands(int id, const Bounds* bounds,
                                         const ProductOptions& options) {
  const Expression& expression = pool_[id];
  const int left = expression.left;
  const int right = expression.right;
  ProductStats stats;
  tables_[id] =
      multiply({tables_[left], bounds_of(bounds, left)},
               {tables_[right], bounds_of(bounds, right)}, expression.labels,
               bounds_of(bounds, id), options, stats);
  ++num_products_;
  stats_.add(stats);
  const double before = std::max(errors_[left], errors_[right]);
  const double made = stats.thinned ? options.tolerance.time : 0;
  errors_[id] = before + made + before * made;
}

std::vector<KnownStrategy> ProductEvaluator::strategies(
    const Schedule& schedule) const {
  const FrontierView found = tables_[root_].points.view();
  std::vector<KnownStrategy> strategies;
  for (std::size_t i = 0; i < found.size(); ++i) {
    strategies.push_back(
        {found.point(i), trace(schedule, static_cast<std::uint32_t>(i))});
  }
  return strategies;
}

// The point that a point of the root takes in the table of every term; only
// those of tables of the problem are set.
std::vector<std::uint32_t> ProductEvaluator::trace(const Schedule& schedule,
                                                   std::uint32_t point) const {
  std::vector<std::uint32_t> points(schedule.terms.size(), 0);
  points[schedule.root] = point;
  // Operands come before their product.
  for (int t = schedule.root; t >= 0; --t) {
    const Term& term = schedule.terms[t];
    const Frontier& from = tables_[term.expression].points;
    const std::uint32_t at = points[t];
    if (term.left >= 0) {
      points[term.left] = from.left[at];
      points[term.right] = from.right[at];
    } else {
      points[t] = from.right[at];
    }
  }
  return points;
}

}  // namespace tensoropt
