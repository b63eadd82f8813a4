#include "search/solution.h"

#include <bit>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "search/budget.h"
#include "search/corner_search.h"
#include "search/stopwatch.h"

namespace tensoropt {

namespace {

// The share of the error budget that known strategies may use up.
constexpr double kKnownShare = 0.5;
// Weightings that the first look asks about.
constexpr std::size_t kFirstQuestions = 9;

}  // namespace

Solution::Solution(const Problem& problem, const std::vector<int>& fixed,
                   const ScheduleOptions& options)
    : problem_(problem), domains_(problem_, fixed), pool_(domains_) {
  domains_.check_not_empty();
  schedule_ = make_schedule(problem_, options, pool_);
}

int Solution::num_products() const {
  int count = 0;
  for (const int id : reachable(pool_, root())) {
    count += pool_[id].kind == Expression::Kind::kProduct ? 1 : 0;
  }
  return count;
}

void Solution::load_tables() {
  base_.assign(pool_.size(), {});
  for (const int id : reachable(pool_, root())) {
    if (pool_[id].kind != Expression::Kind::kProduct) {
      base_[id] = load_table(pool_[id], domains_);
    }
  }
}

void Solution::solve(const SolveOptions& options) {
  load_tables();
  const MinPlusPlan plan(pool_, root(), base_);
  FirstLook look(plan, schedule_, options.num_threads);
  Evaluation evaluation(pool_, root(), base_, options.num_threads);
  if (options.use_bounds) {
    solve_bounded(plan, options, look, evaluation);
  } else {
    solve_unbounded(options, look, evaluation);
  }
  stats_.passes = static_cast<int>(look.weights().size());
  stats_.product = evaluation.stats();
  stats_.products = evaluation.num_products();
  for (const int id : plan.order()) {
    stats_.cells += static_cast<std::int64_t>(plan.volume(id));
  }
  for (const KnownStrategy& known : known_) {
    if (known.cost.memory > options.memory_limit) break;
    points_.push_back(known.cost);
  }
}

// Half of the error for known strategies that stand for others nearby, the
// other half for thinning.
void Solution::solve_bounded(const MinPlusPlan& plan,
                             const SolveOptions& options, FirstLook& look,
                             Evaluation& evaluation) {
  const Stopwatch watch;
  const double epsilon = std::expm1(kKnownShare * std::log1p(options.epsilon));
  look.ask_between(epsilon, options.memory_limit, kFirstQuestions);
  CornerSearch search(
      plan, schedule_,
      {.known_epsilon = epsilon,
       .thin_epsilon = (1 + options.epsilon) / (1 + epsilon) - 1,
       .memory_limit = options.memory_limit,
       .num_threads = options.num_threads},
      look, evaluation);
  search.run();
  known_ = search.known();
  error_ = (1 + epsilon) * (1 + search.error()) - 1;
  stats_.rounds = search.num_rounds();
  stats_.cells_alive = search.num_alive();
  stats_.product_seconds = search.product_seconds();
  stats_.bound_seconds = watch.seconds() - stats_.product_seconds;
}

void Solution::solve_unbounded(const SolveOptions& options, FirstLook& look,
                               Evaluation& evaluation) {
  look.ask_between(0, options.memory_limit, 2);
  known_ = look.strategies();
  if (known_.empty()) return;
  const Stopwatch watch;
  evaluation.run(nullptr, options.epsilon, options.memory_limit);
  const FrontierView found = evaluation.found();
  for (std::size_t i = 0; i < found.size(); ++i) {
    known_.push_back(
        {found.point(i),
         evaluation.trace(schedule_, static_cast<std::uint32_t>(i))});
  }
  known_ = pareto(std::move(known_));
  error_ = evaluation.error();
  stats_.rounds = 1;
  stats_.product_seconds = watch.seconds();
}

Strategy Solution::unroll(int point) const {
  const KnownStrategy& known = known_[point];
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
