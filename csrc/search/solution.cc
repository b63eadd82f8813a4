#include "search/solution.h"

#include <bit>

namespace tensoropt {

Solution::Solution(const Problem& problem, const std::vector<int>& fixed,
                   const ScheduleOptions& options)
    : problem_(problem), domains_(problem_, fixed), pool_(domains_) {
  domains_.check_not_empty();
  schedule_ = make_schedule(problem_, options, pool_);
}

std::int64_t Solution::num_cells() const {
  double cells = 0;
  for (const int id : reachable(pool_, root())) cells += pool_[id].volume;
  return static_cast<std::int64_t>(cells);
}

int Solution::num_products() const {
  int count = 0;
  for (const int id : reachable(pool_, root())) {
    count += pool_[id].kind == Expression::Kind::kProduct ? 1 : 0;
  }
  return count;
}

void Solution::load_tables() {
  tables_.assign(pool_.size(), {});
  for (const int id : reachable(pool_, root())) {
    if (pool_[id].kind != Expression::Kind::kProduct) {
      tables_[id] = load_table(pool_[id], domains_);
    }
  }
}

void Solution::add_known(std::vector<KnownStrategy> strategies) {
  strategies.insert(strategies.end(), known_.begin(), known_.end());
  known_ = pareto(std::move(strategies));
}

Strategy Solution::unroll(std::size_t number) const {
  const KnownStrategy& known = known_[number];
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
    const Table& table = tables_[term.expression];
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
