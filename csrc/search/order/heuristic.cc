#include "search/order/heuristic.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "common/check.h"
#include "problem/frontier.h"
#include "problem/propagation.h"
#include "search/order/domains.h"
#include "search/order/expression.h"

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

double score(const Heuristic& heuristic, Point cost, Point least) {
  // Ties of memory go to the least time, and the other way round.
  constexpr double kTieBreak = 1e-6;
  const double weight =
      std::clamp(heuristic.memory_weight, kTieBreak, 1 - kTieBreak);
  return weight * cost.memory / std::max(least.memory, 1e-300) +
         (1 - weight) * cost.time / std::max(least.time, 1e-300);
}

// Fixes hubs one after the other, in an order that does not depend on how many
// have to be.
class HubFixer {
 public:
  HubFixer(const Problem& problem, const Heuristic& heuristic,
           const ScheduleOptions& options, const ConditioningBudget& budget)
      : problem_(problem),
        heuristic_(heuristic),
        options_(options),
        budget_(budget),
        propagation_(problem),
        masks_(propagation_.all_configs()),
        edges_of_(problem.nodes.size()),
        near_(problem.nodes.size()),
        free_(problem.nodes.size()) {
    Domains(problem, {}).check_not_empty();
    propagation_.run(masks_);
    for (std::size_t n = 0; n < free_.size(); ++n) {
      note_free(static_cast<int>(n));
    }
    for (std::size_t e = 0; e < problem.edges.size(); ++e) {
      const Problem::Edge& edge = problem.edges[e];
      edges_of_[edge.source].push_back(static_cast<int>(e));
      edges_of_[edge.target].push_back(static_cast<int>(e));
      if (!is_free(edge.source) || !is_free(edge.target)) continue;
      near_[edge.source].insert(edge.target);
      near_[edge.target].insert(edge.source);
    }
  }

  // So many that the budget allows what is left, which it did not with one
  // less. Each further look takes a schedule, so steps double, up or down from
  // what is likely, and are then halved.
  std::vector<int> run(int likely) {
    int enough = fix(likely);
    int too_few = -1;
    if (allows(enough)) {
      for (int step = 1; enough > 0; step *= 2) {
        const int fewer = std::max(0, enough - step);
        if (!allows(fewer)) {
          too_few = fewer;
          break;
        }
        enough = fewer;
      }
    } else {
      for (int step = 1; too_few < enough; step *= 2) {
        too_few = enough;
        enough = fix(too_few + step);
        if (allows(enough)) break;
      }
    }
    while (enough - too_few > 1) {
      const int middle = too_few + (enough - too_few) / 2;
      (allows(middle) ? enough : too_few) = middle;
    }
    return fixed(enough);
  }

 private:
  bool is_free(int node) const { return free_[node]; }

  // After its mask has changed.
  void note_free(int node) {
    const ConfigMask& mask = masks_[node];
    free_[node] = std::count(mask.begin(), mask.end(), true) > 1;
  }

  // Fixes so many in all, or all that there are; returns how many are.
  int fix(int count) {
    while (static_cast<int>(order_.size()) < count) {
      const int hub = largest_hub();
      if (!is_free(hub)) break;
      for (const int config : by_score(hub)) {
        if (!try_config(hub, config)) continue;
        order_.emplace_back(hub, config);
        break;
      }
      if (is_free(hub)) break;
    }
    return std::min(count, static_cast<int>(order_.size()));
  }

  // Whether every node keeps a config; if not, nothing is changed.
  bool try_config(int node, int config) {
    const Problem::NodeId id(node);
    std::vector<Propagation::Change> changes{{id, masks_[node]}};
    masks_[node].assign(masks_[node].size(), false);
    masks_[node][config] = true;
    const bool works = propagation_.run_from(id, masks_, changes).is_none();
    if (!works) {
      for (auto change = changes.rbegin(); change != changes.rend(); ++change) {
        masks_[change->first] = change->second;
      }
    }
    for (const auto& [changed, before] : changes) {
      note_free(changed);
      if (is_free(changed)) continue;
      for (const int other : near_[changed]) near_[other].erase(changed);
      near_[changed].clear();
    }
    return works;
  }

  // The free node with the most free neighbours, then the first.
  int largest_hub() const {
    int best = 0;
    for (int n = 1; n < static_cast<int>(near_.size()); ++n) {
      const bool is_larger = near_[n].size() > near_[best].size();
      if (is_larger || (!is_free(best) && is_free(n))) best = n;
    }
    return best;
  }

  // A lower bound for what `config` of `node` costs at the node and its edges.
  Point bound(int node, int config) const {
    Point total = kWorst;
    lower(total, problem_.nodes[node]->choices(config));
    for (const int e : edges_of_[node]) {
      const Problem::Edge& edge = problem_.edges[e];
      const bool is_source = edge.source == node;
      const ConfigMask& others = masks_[is_source ? edge.target : edge.source];
      Point best = kWorst;
      for (std::size_t i = 0; i < others.size(); ++i) {
        if (!others[i]) continue;
        const int c = static_cast<int>(i);
        lower(best, is_source ? edge.table->choices(config, c)
                              : edge.table->choices(c, config));
      }
      total.memory += best.memory;
      total.time += best.time;
    }
    return total;
  }

  // The configs left to a node, the best first.
  std::vector<int> by_score(int node) const {
    std::vector<int> configs;
    std::vector<Point> costs;
    Point least = kWorst;
    for (std::size_t c = 0; c < masks_[node].size(); ++c) {
      if (!masks_[node][c]) continue;
      configs.push_back(static_cast<int>(c));
      costs.push_back(bound(node, configs.back()));
      least.memory = std::min(least.memory, costs.back().memory);
      least.time = std::min(least.time, costs.back().time);
    }
    std::vector<std::size_t> order(configs.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) {
                       return score(heuristic_, costs[a], least) <
                              score(heuristic_, costs[b], least);
                     });
    std::vector<int> result;
    for (const std::size_t i : order) result.push_back(configs[i]);
    return result;
  }

  std::vector<int> fixed(int count) const {
    std::vector<int> configs(problem_.nodes.size(), -1);
    for (int i = 0; i < count; ++i) configs[order_[i].first] = order_[i].second;
    return configs;
  }

  bool allows(int count) const {
    const Domains domains(problem_, fixed(count));
    domains.check_not_empty();
    ExpressionPool pool(domains);
    ScheduleOptions options = options_;
    options.budget = budget_;
    return budget_.allows(make_schedule(problem_, options, pool));
  }

  const Problem& problem_;
  const Heuristic& heuristic_;
  const ScheduleOptions& options_;
  const ConditioningBudget& budget_;
  Propagation propagation_;
  std::vector<ConfigMask> masks_;           // with what is fixed
  std::vector<std::vector<int>> edges_of_;  // by node
  std::vector<std::set<int>> near_;         // free neighbours of free nodes
  std::vector<bool> free_;                  // more than one config is left
  std::vector<std::pair<int, int>> order_;  // hub, config
};

}  // namespace

std::vector<int> fix_hubs(const Problem& problem, const Heuristic& heuristic,
                          const ScheduleOptions& options,
                          const ConditioningBudget& budget, int likely) {
  return HubFixer(problem, heuristic, options, budget).run(likely);
}

}  // namespace tensoropt
