#include "search/solution.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "common/check.h"
#include "search/budget.h"

namespace tensoropt {

namespace {

// The share of the error budget that known strategies may use up.
constexpr double kKnownShare = 0.5;
constexpr int kMaxPasses = 32;
// So many cells are looked at in the first attempt to find more strategies, and
// this many times more in the next one.
constexpr std::int64_t kFirstCells = 10000;
constexpr std::int64_t kMoreCells = 4;
// How far from an optimum strategies are looked for at first, and at last.
constexpr double kFirstSlack = 0.1;
constexpr double kLeastSlack = 1e-7;

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

void Solution::load_tables() {
  base_.assign(pool_.size(), {});
  tables_.assign(pool_.size(), {});
  errors_.assign(pool_.size(), 0);
  for (const int id : reachable(pool_, root())) {
    if (pool_[id].kind != Expression::Kind::kProduct) {
      base_[id] = load_table(pool_[id], domains_);
    }
  }
}

void Solution::solve(const SolveOptions& options) {
  load_tables();
  const MinPlusPlan plan(pool_, root(), base_);
  if (options.use_bounds) {
    solve_bounded(plan, options);
  } else {
    const SupportedFrontier ends =
        find_supported(plan, schedule_, {.max_passes = 2});
    known_ = ends.strategies;
    if (!known_.empty()) compute_tables(nullptr, options, options.epsilon);
    add_found();
    error_ = errors_[root()];
  }
  feasible_ = !known_.empty();
  if (!feasible_) return;
  min_memory_ = known_.front().cost.memory;
  for (std::size_t i = 0; i < known_.size(); ++i) {
    if (known_[i].cost.memory > options.memory_limit) break;
    frontier_.push_back(known_[i].cost, static_cast<std::uint32_t>(i), 0);
  }
}

void Solution::solve_bounded(const MinPlusPlan& plan,
                             const SolveOptions& options) {
  const Stopwatch watch;
  const double epsilon = std::expm1(kKnownShare * std::log1p(options.epsilon));
  SupportedFrontier supported =
      find_supported(plan, schedule_,
                     {.epsilon = epsilon,
                      .memory_limit = options.memory_limit,
                      .max_passes = kMaxPasses,
                      .num_threads = options.num_threads});
  stats_.passes = static_cast<int>(supported.weights.size());
  known_ = std::move(supported.strategies);
  for (const int id : plan.order()) {
    stats_.cells += static_cast<std::int64_t>(plan.volume(id));
  }
  stats_.bound_seconds = watch.seconds();
  std::int64_t cells = kFirstCells;
  while (!search_below_corners(plan, supported, options, epsilon, cells)) {
    cells *= kMoreCells;
  }
}

// Searches what may improve on the known strategies if that is at most `cells`
// cells of tables. Else looks for more known strategies close to the optima,
// where few cells need to be looked at and many strategies are found. Returns
// whether the search was complete.
bool Solution::search_below_corners(const MinPlusPlan& plan,
                                    const SupportedFrontier& supported,
                                    const SolveOptions& options, double epsilon,
                                    std::int64_t cells) {
  const Stopwatch watch;
  const std::vector<Point> corners =
      corners_between(known_costs(), epsilon, options.memory_limit);
  error_ = epsilon;
  if (corners.empty()) return true;
  double slack = std::numeric_limits<double>::infinity();
  const auto limits = [&] {
    return CornerLimits(supported.weights, supported.optima, corners, slack);
  };
  const auto lower_slack = [&](const auto& bounds, std::int64_t most) {
    while (slack > kLeastSlack && bounds.estimate_alive(limits()) > most) {
      slack = std::min(slack / 2, kFirstSlack);
    }
  };
  const DenseBounds dense(plan, limits(), options.num_threads);
  lower_slack(dense, kMoreCells * cells);
  Bounds bounds(plan, dense, limits(), options.num_threads);
  lower_slack(bounds, cells);
  bounds.aim(limits());
  stats_.cells_alive = bounds.num_alive();
  stats_.bound_seconds += watch.seconds();
  const bool complete = std::isinf(slack);
  ++stats_.rounds;
  compute_tables(&bounds, options,
                 complete ? (1 + options.epsilon) / (1 + epsilon) - 1
                          : std::max(options.epsilon, slack));
  add_found();
  error_ = combine(epsilon, errors_[root()]);
  return complete;
}

void Solution::compute_tables(const Bounds* bounds, const SolveOptions& options,
                              double epsilon) {
  const Stopwatch watch;
  const std::vector<double> delta = split_error(pool_, root(), epsilon);
  const TableBounds no_bounds;
  for (const int id : reachable(pool_, root())) {
    if (pool_[id].kind == Expression::Kind::kProduct) {
      compute_product(id, bounds,
                      {delta[id], options.memory_limit, options.num_threads});
      continue;
    }
    const TableBounds& table =
        bounds != nullptr ? bounds->table(id) : no_bounds;
    tables_[id] = filter(base_[id], [&](std::uint32_t cell, Point point) {
      const int rank = table.rank(cell);
      return rank >= 0 && table.may_improve(rank, point);
    });
  }
  stats_.product_seconds += watch.seconds();
}

void Solution::compute_product(int id, const Bounds* bounds,
                               const ProductOptions& options) {
  const TableBounds no_bounds;
  const auto of = [&](int table) -> const TableBounds& {
    return bounds == nullptr ? no_bounds : bounds->table(table);
  };
  const Expression& expression = pool_[id];
  const int left = expression.left;
  const int right = expression.right;
  ProductStats stats;
  tables_[id] = multiply({tables_[left], of(left)}, {tables_[right], of(right)},
                         expression.labels, of(id), options, stats);
  ++stats_.products;
  stats_.product.add(stats);
  const double before = std::max(errors_[left], errors_[right]);
  errors_[id] = stats.thinned ? combine(before, options.delta) : before;
}

// Unrolls all points of the root.
void Solution::add_found() {
  const FrontierView found = tables_[root()].points.view();
  for (std::size_t i = 0; i < found.size(); ++i) {
    std::vector<std::uint32_t> points(schedule_.terms.size(), 0);
    points[schedule_.root] = static_cast<std::uint32_t>(i);
    // Operands come before their product.
    for (int t = schedule_.root; t >= 0; --t) {
      const Term& term = schedule_.terms[t];
      const Frontier& from = tables_[term.expression].points;
      if (term.left >= 0) {
        points[term.left] = from.left[points[t]];
        points[term.right] = from.right[points[t]];
      } else {
        points[t] = from.right[points[t]];
      }
    }
    known_.push_back({found.point(i), std::move(points)});
  }
  known_ = pareto(std::move(known_));
}

std::vector<Point> Solution::known_costs() const {
  std::vector<Point> costs;
  for (const KnownStrategy& known : known_) costs.push_back(known.cost);
  return costs;
}

Strategy Solution::unroll(int point) const {
  const KnownStrategy& known = known_[frontier_.left[point]];
  Strategy strategy;
  strategy.memory = known.cost.memory;
  strategy.time = known.cost.time;
  strategy.config.resize(problem_.nodes.size());
  strategy.node_tag.resize(problem_.nodes.size());
  strategy.edge_tag.resize(problem_.edges.size());
  for (std::size_t t = 0; t < schedule_.terms.size(); ++t) {
    const Term& term = schedule_.terms[t];
    if (term.slot < 0) continue;
    const Expression& expression = pool_[term.expression];
    const Table& table = base_[term.expression];
    const std::uint32_t at = known.points[t];
    const auto tag = std::bit_cast<std::int32_t>(table.points.left[at]);
    if (expression.kind == Expression::Kind::kEdge) {
      strategy.edge_tag[term.slot] = tag;
      continue;
    }
    const auto& configs = domains_.configs_of(expression.domains[0]);
    strategy.node_tag[term.slot] = tag;
    strategy.config[term.slot] = configs[table.index_of_point(at)];
  }
  return strategy;
}

}  // namespace tensoropt
