#include "search/solution.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "common/check.h"
#include "search/budget.h"

namespace tensoropt {

namespace {

// Limits inside are loosened by rounding; the final frontier is cut exactly.
constexpr double kRounding = 1e-9;

double least_memory(const Expression& expression, const Domains& domains) {
  const Table table = load_table(expression, domains);
  const auto& memory = table.points.memory;
  return memory.empty() ? 0 : *std::min_element(memory.begin(), memory.end());
}

}  // namespace

Solution::Solution(const Problem& problem, const std::vector<int>& fixed,
                   const ScheduleOptions& options)
    : problem_(problem),
      domains_(problem_, fixed),
      pool_(domains_),
      schedule_(make_schedule(problem_, options, pool_)) {}

// What a point of each expression may cost at most if all the rest of the
// problem costs at least its least memory.
std::vector<double> Solution::memory_limits(const std::vector<int>& order,
                                            double memory_limit) const {
  std::vector<double> limits(pool_.size(), memory_limit);
  if (std::isinf(memory_limit)) return limits;
  const int root = order.back();
  std::vector<double> least(pool_.size(), 0);
  for (const int id : order) {
    const Expression& expression = pool_[id];
    least[id] = expression.kind == Expression::Kind::kProduct
                    ? least[expression.left] + least[expression.right]
                    : least_memory(expression, domains_);
  }
  for (const int id : order) {
    if (id == root) continue;
    limits[id] -= least[root] - least[id];
    limits[id] += kRounding * std::max(memory_limit, least[root]);
  }
  return limits;
}

void Solution::solve(const SolveOptions& options) {
  const int root = schedule_.terms[schedule_.root].expression;
  const std::vector<int> order = reachable(pool_, root);
  const std::vector<double> delta = split_error(pool_, root, options.epsilon);
  const std::vector<double> limits =
      memory_limits(order, options.memory_limit);
  tables_.assign(pool_.size(), {});
  errors_.assign(pool_.size(), 0);
  for (const int id : order) compute(id, options, delta[id], limits[id]);
  error_ = errors_[root];
}

void Solution::compute(int id, const SolveOptions& options, double delta,
                       double memory_limit) {
  const Expression& expression = pool_[id];
  if (expression.kind != Expression::Kind::kProduct) {
    tables_[id] = load_table(expression, domains_);
    return;
  }
  ProductStats stats;
  tables_[id] =
      multiply(tables_[expression.left], tables_[expression.right],
               expression.labels, {delta, memory_limit, options.num_threads},
               stats);
  ++num_products_;
  const double before =
      std::max(errors_[expression.left], errors_[expression.right]);
  errors_[id] = stats.thinned ? before + delta + before * delta : before;
  stats_.add(stats);
}

FrontierView Solution::points() const {
  return tables_[schedule_.terms[schedule_.root].expression].points.view();
}

Strategy Solution::unroll(int point) const {
  Strategy strategy;
  strategy.config.resize(problem_.nodes.size());
  strategy.node_tag.resize(problem_.nodes.size());
  strategy.edge_tag.resize(problem_.edges.size());
  const Point cost = points().point(point);
  strategy.memory = cost.memory;
  strategy.time = cost.time;
  std::vector<std::pair<int, std::uint32_t>> open{
      {schedule_.root, static_cast<std::uint32_t>(point)}};
  while (!open.empty()) {
    const auto [term_id, at] = open.back();
    open.pop_back();
    const Term& term = schedule_.terms[term_id];
    const Expression& expression = pool_[term.expression];
    const Table& table = tables_[term.expression];
    const std::int32_t tag = std::bit_cast<std::int32_t>(table.points.left[at]);
    if (expression.kind == Expression::Kind::kProduct) {
      open.emplace_back(term.left, table.points.left[at]);
      open.emplace_back(term.right, table.points.right[at]);
    } else if (expression.kind == Expression::Kind::kNode) {
      const auto& configs = domains_.configs_of(expression.domains[0]);
      strategy.config[term.slot] = configs[table.index_of_point(at)];
      strategy.node_tag[term.slot] = tag;
    } else if (expression.kind == Expression::Kind::kEdge) {
      strategy.edge_tag[term.slot] = tag;
    }
  }
  return strategy;
}

}  // namespace tensoropt
