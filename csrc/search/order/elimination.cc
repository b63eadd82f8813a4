#include "search/order/elimination.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"

namespace tensoropt {

namespace {

std::vector<int> sorted(std::vector<int> values) {
  std::sort(values.begin(), values.end());
  return values;
}

bool contains(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

int index_of(const std::vector<int>& values, int value) {
  return static_cast<int>(std::find(values.begin(), values.end(), value) -
                          values.begin());
}

// The nodes of the result, in canonical order: shared, left only, right only.
std::vector<int> joint_scope(const std::vector<int>& left,
                             const std::vector<int>& right, int summed_node) {
  std::vector<int> scope;
  for (const int n : left) {
    if (n != summed_node && contains(right, n)) scope.push_back(n);
  }
  for (const int n : left) {
    if (!contains(right, n)) scope.push_back(n);
  }
  for (const int n : right) {
    if (!contains(left, n)) scope.push_back(n);
  }
  return scope;
}

ProductLabels labels_of(const std::vector<int>& left,
                        const std::vector<int>& right,
                        const std::vector<int>& outputs) {
  ProductLabels labels;
  labels.num_outputs = static_cast<int>(outputs.size());
  for (const int n : left) labels.left.push_back(index_of(outputs, n));
  for (const int n : right) labels.right.push_back(index_of(outputs, n));
  return labels;
}

}  // namespace

FactorGraph::FactorGraph(const Problem& problem, ExpressionPool& pool)
    : pool_(pool),
      factors_of_(problem.nodes.size()),
      alive_(problem.nodes.size()),
      cached_(problem.nodes.size()) {
  const Domains& domains = pool.domains();
  const int num_nodes = static_cast<int>(problem.nodes.size());
  for (int n = 0; n < num_nodes; ++n) {
    alive_[n] = domains.size(n) > 1;
    num_alive_ += alive_[n];
    const int term = add_term(
        {.expression = pool.node(*problem.nodes[n], domains.id(n)), .slot = n});
    add_factor({term, alive_[n] ? std::vector{n} : std::vector<int>{}});
  }
  const int num_edges = static_cast<int>(problem.edges.size());
  for (int e = 0; e < num_edges; ++e) {
    const Problem::Edge& edge = problem.edges[e];
    const int expression = pool.edge(*edge.table, domains.id(edge.source),
                                     domains.id(edge.target));
    Factor factor{add_term({.expression = expression, .slot = e}), {}};
    for (const int end : {edge.source, edge.target}) {
      if (alive_[end]) factor.scope.push_back(end);
    }
    add_factor(std::move(factor));
  }
}

int FactorGraph::add_term(Term term) {
  terms_.push_back(term);
  return static_cast<int>(terms_.size()) - 1;
}

// Merges with the factor over the same nodes, if there is one.
void FactorGraph::add_factor(Factor factor) {
  if (factor.scope.empty()) {
    scalars_.push_back(factor.term);
    return;
  }
  const std::vector<int> key = sorted(factor.scope);
  if (const auto found = factor_over_.find(key); found != factor_over_.end()) {
    const Factor other = take_factor(found->second);
    factor = multiply(other, factor, -1);
  }
  const int id = static_cast<int>(factors_.size());
  factor_over_[key] = id;
  for (const int n : key) {
    factors_of_[n].push_back(id);
    forget(n);
  }
  factors_.push_back(std::move(factor));
}

FactorGraph::Factor FactorGraph::take_factor(int id) {
  Factor factor = std::move(factors_[id]);
  factor_over_.erase(sorted(factor.scope));
  for (const int n : factor.scope) {
    std::erase(factors_of_[n], id);
    forget(n);
  }
  factors_[id] = {};
  return factor;
}

// Which operand stands left must not depend on where in the graph they are.
FactorGraph::Factor FactorGraph::multiply(const Factor& a, const Factor& b,
                                          int summed_node) {
  const int a_id = terms_[a.term].expression;
  const int b_id = terms_[b.term].expression;
  std::vector<int> scope = joint_scope(a.scope, b.scope, summed_node);
  ProductLabels labels = labels_of(a.scope, b.scope, scope);
  bool swap = b_id < a_id;
  if (b_id <= a_id) {
    std::vector<int> other_scope = joint_scope(b.scope, a.scope, summed_node);
    ProductLabels other = labels_of(b.scope, a.scope, other_scope);
    swap = swap || other < labels;
    if (swap) {
      scope = std::move(other_scope);
      labels = std::move(other);
    }
  }
  const Factor& left = swap ? b : a;
  const Factor& right = swap ? a : b;
  const int expression =
      pool_.product(swap ? b_id : a_id, swap ? a_id : b_id, labels);
  const int term = add_term(
      {.expression = expression, .left = left.term, .right = right.term});
  return {term, std::move(scope), left.tables + right.tables};
}

double FactorGraph::joint_volume(const Factor& a, const Factor& b) const {
  double volume = 1;
  for (const int n : joint_scope(a.scope, b.scope, -1)) {
    volume = saturated(volume * dim(n));
  }
  return volume;
}

// Among equal volumes the pair of the fewest tables: that is a part of one
// layer, which the other layers share, rather than what is behind this one.
void FactorGraph::join_cheapest_pair(int node) {
  const std::vector<int>& ids = factors_of_[node];
  std::pair least{std::numeric_limits<double>::infinity(),
                  std::numeric_limits<int>::max()};
  std::pair<int, int> best;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::size_t j = i + 1; j < ids.size(); ++j) {
      const Factor& a = factors_[ids[i]];
      const Factor& b = factors_[ids[j]];
      const std::pair cost{joint_volume(a, b), a.tables + b.tables};
      if (cost >= least) continue;
      least = cost;
      best = {ids[i], ids[j]};
    }
  }
  const Factor first = take_factor(best.first);
  const Factor second = take_factor(best.second);
  add_factor(multiply(first, second, -1));
}

void FactorGraph::eliminate(int node) {
  TO_ASSERT(alive_[node], "node {} was eliminated before", node);
  while (factors_of_[node].size() > 2) join_cheapest_pair(node);
  const Factor first = take_factor(factors_of_[node].front());
  Factor second;
  if (factors_of_[node].empty()) {
    second.term =
        add_term({.expression = pool_.unit(pool_.domains().size(node))});
    second.scope = {node};
  } else {
    second = take_factor(factors_of_[node].front());
  }
  alive_[node] = false;
  --num_alive_;
  add_factor(multiply(first, second, node));
}

int FactorGraph::finish() {
  TO_ASSERT(num_alive_ == 0, "{} nodes are left", num_alive_);
  // A balanced tree over equal neighbours: repeated parts are joined once.
  std::vector<int> level = scalars_;
  std::stable_sort(level.begin(), level.end(), [this](int a, int b) {
    return terms_[a].expression < terms_[b].expression;
  });
  while (level.size() > 1) {
    std::vector<int> next;
    for (std::size_t i = 0; i + 1 < level.size(); i += 2) {
      const Factor a{level[i], {}};
      const Factor b{level[i + 1], {}};
      next.push_back(multiply(a, b, -1).term);
    }
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = std::move(next);
  }
  return level.front();
}

void FactorGraph::forget(int node) {
  if (cached_[node].valid) changed_.push_back(node);
  cached_[node].valid = false;
}

std::vector<int> FactorGraph::take_changed() {
  return std::exchange(changed_, {});
}

const FactorGraph::Cached& FactorGraph::cached(int node) const {
  Cached& cached = cached_[node];
  if (cached.valid) return cached;
  std::vector<int> near;
  double work = dim(node);
  double points = 0;
  for (const int id : factors_of_[node]) {
    const Factor& factor = factors_[id];
    const Expression& expression = pool_[terms_[factor.term].expression];
    for (const int n : factor.scope) {
      if (n != node) near.push_back(n);
    }
    work *= std::min(1.0, expression.cells / expression.volume);
    points += expression.points_per_cell;
  }
  std::sort(near.begin(), near.end());
  near.erase(std::unique(near.begin(), near.end()), near.end());
  for (const int n : near) work = saturated(work * dim(n));
  cached = {true, std::move(near), saturated(work * points)};
  return cached;
}

const std::vector<int>& FactorGraph::neighbours(int node) const {
  return cached(node).neighbours;
}

double FactorGraph::work(int node) const { return cached(node).work; }

}  // namespace tensoropt
