#include "search/solution.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "common/check.h"
#include "common/str_format.h"

namespace tensoropt {

namespace {

// Of one table: places in it are counted in 32 bits.
constexpr double kMaxCells = std::numeric_limits<std::int32_t>::max();

}  // namespace

Solution::Solution(const Problem& problem, const std::vector<int>& fixed,
                   const ScheduleOptions& options)
    : problem_(problem), domains_(problem_, fixed), pool_(domains_) {
  domains_.check_not_empty();
  schedule_ = make_schedule(problem_, options, pool_);
}

std::int64_t Solution::num_cells() const {
  constexpr double kMost = 1e18;
  if (!has_schedule()) return static_cast<std::int64_t>(kMost);
  double cells = 0;
  for (const int id : reachable(pool_, root())) cells += pool_[id].volume;
  return static_cast<std::int64_t>(std::min(cells, kMost));
}

int Solution::num_products() const {
  int count = 0;
  for (const int id : reachable(pool_, root())) {
    count += pool_[id].kind == Expression::Kind::kProduct ? 1 : 0;
  }
  return count;
}

void Solution::load_tables() {
  TO_CHECK(has_schedule(),
           "{} nodes depend on each other too closely to be searched; lower "
           "max_conditioning_work, so that some of them are fixed",
           schedule_.num_left);
  tables_.assign(pool_.size(), {});
  for (const int id : reachable(pool_, root())) {
    TO_CHECK(pool_[id].volume <= kMaxCells,
             "a table of {} configs has more cells than can be counted; lower "
             "max_configs",
             str_join(pool_[id].dims, " x "));
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
