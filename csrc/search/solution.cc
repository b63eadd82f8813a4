#include "search/solution.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "search/budget.h"

namespace tensoropt {

namespace {

// In a point of the final frontier: not a known strategy.
constexpr std::uint32_t kFromTables = ~std::uint32_t{0};
// The share of the error budget that known strategies may use up.
constexpr double kKnownShare = 0.5;
constexpr int kMaxPasses = 32;

class Stopwatch {
 public:
  double seconds() const {
    const std::chrono::duration<double> passed =
        std::chrono::steady_clock::now() - start_;
    return passed.count();
  }

 private:
  std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
};

double combine(double error, double other) {
  return error + other + error * other;
}

}  // namespace

Solution::Solution(const Problem& problem, const std::vector<int>& fixed,
                   const ScheduleOptions& options)
    : problem_(problem),
      domains_(problem_, fixed),
      pool_(domains_),
      schedule_(make_schedule(problem_, options, pool_)) {}

void Solution::solve(const SolveOptions& options) {
  const Stopwatch watch;
  base_.assign(pool_.size(), {});
  for (const int id : reachable(pool_, root())) {
    if (pool_[id].kind != Expression::Kind::kProduct) {
      base_[id] = load_table(pool_[id], domains_);
    }
  }
  const double known_epsilon =
      options.use_bounds
          ? std::expm1(kKnownShare * std::log1p(options.epsilon))
          : 0;
  const MinPlusPlan plan(pool_, root(), base_);
  find_known(plan, options, known_epsilon);
  if (known_.strategies.empty()) return;
  tables_.assign(pool_.size(), {});
  errors_.assign(pool_.size(), 0);
  const std::vector<Corner> corners = corners_between(
      known_.strategies, known_epsilon, options.memory_limit);
  stats_.bound_seconds = watch.seconds();
  if (!options.use_bounds || !corners.empty()) {
    const double left = (1 + options.epsilon) / (1 + known_epsilon) - 1;
    compute_tables(plan, options, corners, left);
  }
  error_ = combine(errors_[root()], known_epsilon);
  unite(options);
}

void Solution::find_known(const MinPlusPlan& plan, const SolveOptions& options,
                          double epsilon) {
  known_ = find_supported(plan, schedule_,
                          {.epsilon = epsilon,
                           .memory_limit = options.memory_limit,
                           .max_passes = options.use_bounds ? kMaxPasses : 2,
                           .num_threads = options.num_threads});
  stats_.passes = static_cast<int>(known_.weights.size());
  feasible_ = !known_.strategies.empty();
  if (feasible_) min_memory_ = known_.strategies.front().cost.memory;
}

void Solution::compute_tables(const MinPlusPlan& plan,
                              const SolveOptions& options,
                              const std::vector<Corner>& corners,
                              double epsilon) {
  const Stopwatch watch;
  const Bounds bounds(plan, known_.weights,
                      options.use_bounds ? corners : std::vector<Corner>{},
                      options.num_threads);
  stats_.cells = bounds.num_cells();
  stats_.cells_alive = bounds.num_alive();
  stats_.bound_seconds += watch.seconds();
  const Stopwatch product_watch;
  const std::vector<double> delta = split_error(pool_, root(), epsilon);
  const TableBounds no_bounds;
  for (const int id : plan.order()) {
    const TableBounds& table_bounds =
        options.use_bounds ? bounds.table(id) : no_bounds;
    if (pool_[id].kind == Expression::Kind::kProduct) {
      compute_product(id, table_bounds,
                      {delta[id], options.memory_limit, options.num_threads});
      continue;
    }
    tables_[id] = filter(base_[id], [&](std::uint32_t cell, Point point) {
      const int rank = table_bounds.rank(cell);
      return rank >= 0 && table_bounds.may_improve(rank, point);
    });
  }
  stats_.product_seconds = product_watch.seconds();
}

void Solution::compute_product(int id, const TableBounds& bounds,
                               const ProductOptions& options) {
  const Expression& expression = pool_[id];
  ProductStats stats;
  tables_[id] = multiply(tables_[expression.left], tables_[expression.right],
                         expression.labels, bounds, options, stats);
  ++stats_.products;
  stats_.product.add(stats);
  const double before =
      std::max(errors_[expression.left], errors_[expression.right]);
  errors_[id] = stats.thinned ? combine(before, options.delta) : before;
}

// The known strategies and those found by the search.
void Solution::unite(const SolveOptions& options) {
  FrontierBuilder builder(/*delta=*/0, options.memory_limit);
  for (std::size_t i = 0; i < known_.strategies.size(); ++i) {
    builder.add(known_.strategies[i].cost, static_cast<std::uint32_t>(i), 0);
  }
  const FrontierView found = tables_[root()].points.view();
  for (std::size_t i = 0; i < found.size(); ++i) {
    builder.add(found.point(i), kFromTables, static_cast<std::uint32_t>(i));
  }
  builder.move_to(frontier_);
}

// The point taken in the table of every term.
std::vector<std::uint32_t> Solution::base_points(
    std::uint32_t root_point) const {
  std::vector<std::uint32_t> points(schedule_.terms.size(), 0);
  points[schedule_.root] = root_point;
  // Operands come before their product.
  for (int t = schedule_.root; t >= 0; --t) {
    const Term& term = schedule_.terms[t];
    if (term.left < 0) continue;
    const Frontier& from = tables_[term.expression].points;
    points[term.left] = from.left[points[t]];
    points[term.right] = from.right[points[t]];
  }
  return points;
}

Strategy Solution::unroll(int point) const {
  const bool is_known = frontier_.left[point] != kFromTables;
  const std::vector<std::uint32_t> points =
      is_known ? known_.strategies[frontier_.left[point]].points
               : base_points(frontier_.right[point]);
  const std::vector<Table>& tables = is_known ? base_ : tables_;
  Strategy strategy;
  strategy.memory = frontier_.memory[point];
  strategy.time = frontier_.time[point];
  strategy.config.resize(problem_.nodes.size());
  strategy.node_tag.resize(problem_.nodes.size());
  strategy.edge_tag.resize(problem_.edges.size());
  for (std::size_t t = 0; t < schedule_.terms.size(); ++t) {
    const Term& term = schedule_.terms[t];
    if (term.slot < 0) continue;
    const Expression& expression = pool_[term.expression];
    const Table& table = tables[term.expression];
    const auto tag = std::bit_cast<std::int32_t>(table.points.left[points[t]]);
    if (expression.kind == Expression::Kind::kEdge) {
      strategy.edge_tag[term.slot] = tag;
      continue;
    }
    const auto& configs = domains_.configs_of(expression.domains[0]);
    strategy.node_tag[term.slot] = tag;
    strategy.config[term.slot] = configs[table.index_of_point(points[t])];
  }
  return strategy;
}

}  // namespace tensoropt
