#include "search/order/schedule.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "search/order/cut_nodes.h"

namespace tensoropt {

namespace {

// At most so many hubs, and so many candidates for each of them.
constexpr std::size_t kMaxHubs = 4;
constexpr std::size_t kHubCandidates = 3;
// Of one step, by estimate. Far above all that could ever be computed: below it
// estimates still tell which hubs help.
constexpr double kHopelessWork = 1e24;

// The graph of nodes that still have a choice of config.
Adjacency adjacency(const Problem& problem, const Domains& domains,
                    const std::vector<int>& without) {
  std::vector<std::set<int>> near(problem.nodes.size());
  std::vector<bool> gone(problem.nodes.size());
  for (const int n : without) gone[n] = true;
  for (std::size_t n = 0; n < near.size(); ++n) {
    if (domains.size(static_cast<int>(n)) == 1) gone[n] = true;
  }
  for (const Problem::Edge& edge : problem.edges) {
    if (gone[edge.source] || gone[edge.target]) continue;
    near[edge.source].insert(edge.target);
    near[edge.target].insert(edge.source);
  }
  Adjacency graph;
  for (const auto& set : near) graph.emplace_back(set.begin(), set.end());
  return graph;
}

// Runs one elimination order to its end, or until it takes more than
// `most_work`.
class ScheduleMaker {
 public:
  ScheduleMaker(const Problem& problem, const ScheduleOptions& options,
                const std::vector<int>& hubs, double most_work,
                ExpressionPool& pool)
      : options_(options),
        most_work_(most_work),
        pool_(pool),
        graph_(problem, pool),
        is_hub_(problem.nodes.size()),
        kept_(problem.nodes.size()),
        queued_(problem.nodes.size()) {
    schedule_.hubs = hubs;
    for (const int hub : hubs) is_hub_[hub] = true;
    const Adjacency near = adjacency(problem, pool.domains(), hubs);
    if (options.algorithm == Algorithm::kLdp) {
      std::vector<const void*> kinds;
      for (const auto& table : problem.nodes) kinds.push_back(table.get());
      kept_ = find_cut_nodes(near, kinds);
    } else {
      // Leaves that arise later wait: the chain is eliminated from inside.
      for (std::size_t n = 0; n < near.size(); ++n) {
        first_leaf_.push_back(near[n].size() <= 1);
      }
    }
  }

  Schedule run() {
    for (int n = 0; n < static_cast<int>(is_hub_.size()); ++n) enqueue(n);
    while (graph_.num_alive() > 0) {
      if (!step() || is_too_much()) return given_up();
    }
    schedule_.root = graph_.finish();
    add_up_work();
    schedule_.terms = graph_.terms();
    return std::move(schedule_);
  }

 private:
  int degree(int node) const {
    int degree = 0;
    for (const int n : graph_.neighbours(node)) degree += !is_hub_[n];
    return degree;
  }

  bool eligible(int node) const {
    if (is_hub_[node]) return false;
    if (options_.algorithm == Algorithm::kLdp) {
      return !kept_[node] || degree(node) <= 1;
    }
    return degree(node) != 1 || first_leaf_[node];
  }

  // Conditioning last: it makes tables over three nodes and more.
  std::pair<bool, double> priority(int node) const {
    return {graph_.neighbours(node).size() > 2, graph_.work(node)};
  }

  void enqueue(int node) {
    if (!graph_.alive(node)) return;
    queued_[node] = priority(node);
    queue_.emplace(queued_[node], node);
  }

  void dequeue(int node) { queue_.erase({queued_[node], node}); }

  // What an elimination has changed.
  void requeue() {
    for (const int node : graph_.take_changed()) {
      dequeue(node);
      enqueue(node);
    }
  }

  // The least work first, then the first position.
  template <typename Predicate>
  std::optional<int> cheapest(Predicate&& allowed) const {
    for (const auto& [cost, node] : queue_) {
      if (allowed(node)) return node;
    }
    return std::nullopt;
  }

  bool is_hopeless(const std::optional<int>& node) const {
    return !node || graph_.work(*node) > kHopelessWork;
  }

  // Whether there was a node that can be eliminated at all.
  bool step() {
    std::optional<int> node = cheapest([this](int n) { return eligible(n); });
    if (is_hopeless(node)) {
      node = cheapest([this](int n) { return !is_hub_[n]; });
    }
    if (is_hopeless(node)) node = cheapest([](int) { return true; });
    if (is_hopeless(node)) return false;
    const std::size_t degree = graph_.neighbours(*node).size();
    ++(degree <= 1   ? schedule_.num_branch
       : degree == 2 ? schedule_.num_node
                     : schedule_.num_conditioning);
    dequeue(*node);
    graph_.eliminate(*node);
    requeue();
    return true;
  }

  Schedule given_up() {
    const double infinity = std::numeric_limits<double>::infinity();
    schedule_.num_left = graph_.num_alive();
    schedule_.work = schedule_.cells = schedule_.conditioning_work = infinity;
    return std::move(schedule_);
  }

  // Estimates only grow with further steps.
  bool is_too_much() {
    add_up_work();
    return schedule_.work > most_work_ ||
           (options_.budget && !options_.budget->allows(schedule_));
  }

  // Of the terms that were made since it was last done.
  void add_up_work() {
    added_up_.resize(pool_.size(), false);
    for (; num_added_up_ < graph_.terms().size(); ++num_added_up_) {
      const int id = graph_.terms()[num_added_up_].expression;
      if (added_up_[id]) continue;
      added_up_[id] = true;
      const Expression& expression = pool_[id];
      schedule_.work += expression.work;
      schedule_.cells += expression.volume;
      if (over_four_nodes(expression)) {
        schedule_.conditioning_work += expression.work;
      }
    }
  }

  static bool over_four_nodes(const Expression& expression) {
    if (expression.kind != Expression::Kind::kProduct) return false;
    std::set<int> labels(expression.labels.left.begin(),
                         expression.labels.left.end());
    labels.insert(expression.labels.right.begin(),
                  expression.labels.right.end());
    return labels.size() > 3 || expression.labels.num_outputs > 2;
  }

  const ScheduleOptions options_;
  const double most_work_;
  ExpressionPool& pool_;
  FactorGraph graph_;
  std::vector<bool> is_hub_;
  std::vector<bool> kept_;
  std::vector<bool> first_leaf_;
  // The nodes that are left, by what comes first.
  std::vector<std::pair<bool, double>> queued_;
  std::set<std::pair<std::pair<bool, double>, int>> queue_;
  Schedule schedule_;
  std::size_t num_added_up_ = 0;  // terms
  std::vector<bool> added_up_;    // by expression
};

// Nodes in a cycle with the most neighbours, or with the fewest configs; of
// those of repeated blocks, which are alike, the first.
std::vector<int> hub_candidates(const Problem& problem, const Domains& domains,
                                const std::vector<int>& hubs) {
  const Adjacency graph = adjacency(problem, domains, hubs);
  const std::vector<bool> core = two_core(graph);
  std::vector<int> nodes;
  for (int n = 0; n < static_cast<int>(core.size()); ++n) {
    if (core[n]) nodes.push_back(n);
  }
  const auto by_degree = [&](int a, int b) {
    return graph[a].size() > graph[b].size();
  };
  const auto by_size = [&](int a, int b) {
    return domains.size(a) < domains.size(b);
  };
  std::map<std::tuple<const NodeTable*, int, std::size_t>, int> first;
  const auto add_first = [&](auto&& order) {
    std::stable_sort(nodes.begin(), nodes.end(), order);
    const std::size_t count = std::min(kHubCandidates, nodes.size());
    for (std::size_t i = 0; i < count; ++i) {
      const int node = nodes[i];
      first.try_emplace(
          {problem.nodes[node].get(), domains.id(node), graph[node].size()},
          node);
    }
  };
  add_first(by_degree);
  add_first(by_size);
  std::vector<int> result;
  for (const auto& [kind, node] : first) result.push_back(node);
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace

Schedule make_schedule(const Problem& problem, const ScheduleOptions& options,
                       ExpressionPool& pool) {
  const std::vector<int> given = options.hubs.value_or(std::vector<int>{});
  const auto with_hubs = [&](const std::vector<int>& hubs, double most_work) {
    return ScheduleMaker(problem, options, hubs, most_work, pool).run();
  };
  Schedule best = with_hubs(given, std::numeric_limits<double>::infinity());
  if (options.hubs) return best;
  bool improved = true;
  while (improved && best.hubs.size() < kMaxHubs) {
    improved = false;
    const std::vector<int> hubs = best.hubs;
    for (const int hub : hub_candidates(problem, pool.domains(), hubs)) {
      std::vector<int> more = hubs;
      more.push_back(hub);
      Schedule schedule = with_hubs(more, best.work);
      if (!schedule.is_better_than(best)) continue;
      best = std::move(schedule);
      improved = true;
    }
  }
  return best;
}

std::vector<std::vector<int>> scopes_of(const Schedule& schedule,
                                        const Problem& problem,
                                        const ExpressionPool& pool) {
  std::vector<std::vector<int>> scopes;
  const auto add = [&](std::vector<int>& scope, int node) {
    if (pool.domains().size(node) > 1) scope.push_back(node);
  };
  for (const Term& term : schedule.terms) {
    const Expression& expression = pool[term.expression];
    std::vector<int> scope;
    if (expression.kind == Expression::Kind::kUnit) scope = {-1};
    if (expression.kind == Expression::Kind::kNode) add(scope, term.slot);
    if (expression.kind == Expression::Kind::kEdge) {
      add(scope, problem.edges[term.slot].source);
      add(scope, problem.edges[term.slot].target);
    }
    if (expression.kind == Expression::Kind::kProduct) {
      scope.resize(expression.labels.num_outputs, -1);
      const auto take = [&](const std::vector<int>& labels, int operand) {
        for (std::size_t i = 0; i < labels.size(); ++i) {
          if (labels[i] >= expression.labels.num_outputs) continue;
          scope[labels[i]] = std::max(scope[labels[i]], scopes[operand][i]);
        }
      };
      take(expression.labels.left, term.left);
      take(expression.labels.right, term.right);
    }
    scopes.push_back(std::move(scope));
  }
  return scopes;
}

}  // namespace tensoropt
