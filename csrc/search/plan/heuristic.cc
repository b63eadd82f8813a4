#include "search/plan/heuristic.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "common/check.h"
#include "problem/frontier.h"
#include "search/plan/domains.h"
#include "search/plan/expression.h"

namespace tensoropt {

namespace {

// Least memory and least time, not necessarily of the same choice.
void lower(Point& best, std::span<const Choice> choices) {
  for (const Choice& choice : choices) {
    best.memory = std::min(best.memory, choice.memory);
    best.time = std::min(best.time, choice.time);
  }
}

constexpr Point kWorst{std::numeric_limits<double>::infinity(),
                       std::numeric_limits<double>::infinity()};

// A lower bound for what `config` of `node` costs at the node and its edges.
Point bound(const Problem& problem, const Domains& domains, int node,
            int config) {
  Point total = kWorst;
  lower(total, problem.nodes[node]->choices(config));
  for (const Problem::Edge& edge : problem.edges) {
    if (edge.source != node && edge.target != node) continue;
    const bool is_source = edge.source == node;
    const int other = is_source ? edge.target : edge.source;
    Point best = kWorst;
    for (const int c : domains.configs_of(domains.id(other))) {
      lower(best, is_source ? edge.table->choices(config, c)
                            : edge.table->choices(c, config));
    }
    total.memory += best.memory;
    total.time += best.time;
  }
  return total;
}

double score(const Heuristic& heuristic, Point cost, Point least) {
  // Ties of memory go to the least time, and the other way round.
  constexpr double kTieBreak = 1e-6;
  const double weight =
      std::clamp(heuristic.memory_weight, kTieBreak, 1 - kTieBreak);
  return weight * cost.memory / std::max(least.memory, 1e-300) +
         (1 - weight) * cost.time / std::max(least.time, 1e-300);
}

// The configs left to a node, the best first.
std::vector<int> by_score(const Problem& problem, const Domains& domains,
                          int node, const Heuristic& heuristic) {
  const std::vector<int>& configs = domains.configs_of(domains.id(node));
  std::vector<Point> costs;
  Point least = kWorst;
  for (const int c : configs) {
    costs.push_back(bound(problem, domains, node, c));
    least.memory = std::min(least.memory, costs.back().memory);
    least.time = std::min(least.time, costs.back().time);
  }
  std::vector<std::size_t> order(configs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) {
                     return score(heuristic, costs[a], least) <
                            score(heuristic, costs[b], least);
                   });
  std::vector<int> result;
  for (const std::size_t i : order) result.push_back(configs[i]);
  return result;
}

// The free node with the most free neighbours, then the first.
int largest_hub(const Problem& problem, const Domains& domains) {
  std::vector<std::set<int>> near(problem.nodes.size());
  for (const Problem::Edge& edge : problem.edges) {
    if (domains.size(edge.source) == 1 || domains.size(edge.target) == 1) {
      continue;
    }
    near[edge.source].insert(edge.target);
    near[edge.target].insert(edge.source);
  }
  const auto most = std::max_element(
      near.begin(), near.end(),
      [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return static_cast<int>(most - near.begin());
}

}  // namespace

std::vector<int> fix_hubs(const Problem& problem, const Heuristic& heuristic,
                          const ScheduleOptions& options,
                          const ConditioningBudget& budget) {
  std::vector<int> fixed(problem.nodes.size(), -1);
  while (true) {
    const Domains domains(problem, fixed);
    domains.check_not_empty();
    ExpressionPool pool(domains);
    if (budget.allows(make_schedule(problem, options, pool))) return fixed;
    const int hub = largest_hub(problem, domains);
    for (const int config : by_score(problem, domains, hub, heuristic)) {
      fixed[hub] = config;
      if (Domains(problem, fixed).empty_node() < 0) break;
    }
  }
}

}  // namespace tensoropt
