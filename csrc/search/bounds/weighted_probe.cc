#include "search/bounds/weighted_probe.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tensoropt {

namespace {

// So many cells are looked at for an estimate, if there are many more.
constexpr std::size_t kSamples = 20000;
// What the cost that decides between equals weighs.
constexpr double kTieBreak = 1e-6;

Point cost_of(const std::vector<std::uint32_t>& points,
              const Schedule& schedule, const MinPlusGraph& graph) {
  Point cost;
  for (std::size_t t = 0; t < points.size(); ++t) {
    const Term& term = schedule.terms[t];
    if (term.slot < 0) continue;
    const Frontier& frontier = graph.table(term.expression).points;
    cost.memory += frontier.memory[points[t]];
    cost.time += frontier.time[points[t]];
  }
  return cost;
}

template <typename T, typename CostOf>
std::vector<T> pareto_of(std::vector<T> all, CostOf&& cost) {
  std::stable_sort(all.begin(), all.end(), [&](const T& a, const T& b) {
    return std::pair(cost(a).memory, cost(a).time) <
           std::pair(cost(b).memory, cost(b).time);
  });
  std::vector<T> kept;
  for (T& one : all) {
    if (kept.empty() || cost(one).time < cost(kept.back()).time) {
      kept.push_back(std::move(one));
    }
  }
  return kept;
}

}  // namespace

std::vector<KnownStrategy> pareto(std::vector<KnownStrategy> strategies) {
  return pareto_of(std::move(strategies),
                   [](const KnownStrategy& strategy) { return strategy.cost; });
}

std::vector<Point> pareto(std::vector<Point> costs) {
  return pareto_of(std::move(costs), [](Point cost) { return cost; });
}

std::vector<Point> known_costs(const std::vector<KnownStrategy>& strategies) {
  std::vector<Point> costs;
  for (const auto& strategy : strategies) costs.push_back(strategy.cost);
  return costs;
}

void WeightedProbe::solve_between(double epsilon, const MemoryLimits& limits,
                                  std::size_t max_weightings) {
  solve_as<double>({{.memory = 1, .time = 0}, {.memory = 0, .time = 1}});
  while (weights_.size() < max_weightings) {
    const std::vector<Weights> weightings =
        next_weightings(epsilon, limits, max_weightings - weights_.size());
    if (weightings.empty()) return;
    solve(weightings);
  }
}

void WeightedProbe::solve_ends() {
  if (strategies_.empty()) return;
  const Point small = strategies_.front().cost;
  const Point fast = strategies_.back().cost;
  if (small.memory <= 0 || fast.memory <= 0 || fast.time <= 0) return;
  std::vector<Weights> ends{
      {.memory = 1 / small.memory, .time = kTieBreak / small.time},
      {.memory = kTieBreak / fast.memory, .time = 1 / fast.time}};
  std::erase_if(ends, [](const Weights& w) { return !w.is_usable(); });
  solve_as<double>(ends);
}

// The widest gaps whose weightings are not solved.
std::vector<Weights> WeightedProbe::next_weightings(double epsilon,
                                                    const MemoryLimits& limits,
                                                    std::size_t most) const {
  std::vector<std::pair<double, Weights>> open;
  for (std::size_t i = 0; i + 1 < strategies_.size(); ++i) {
    const Point a = strategies_[i].cost;
    const Point b = strategies_[i + 1].cost;
    if (!limits.between(a.memory, b.memory)) continue;
    const double gap = gap_between(a, b);
    const Weights weights = equal_weights(a, b);
    const bool solved =
        std::find(weights_.begin(), weights_.end(), weights) != weights_.end();
    if (gap > epsilon && !solved && weights.is_usable())
      open.emplace_back(-gap, weights);
  }
  std::stable_sort(open.begin(), open.end(), [](const auto& a, const auto& b) {
    return a.first < b.first;
  });
  std::vector<Weights> weightings;
  for (const auto& [gap, weights] : open) {
    if (weightings.size() < most) weightings.push_back(weights);
  }
  return weightings;
}

std::vector<Weights> WeightedProbe::weightings_for(
    const std::vector<Point>& zones, std::size_t most) const {
  return weights_above(known_costs(strategies_), zones, weights_, most);
}

void WeightedProbe::solve(const std::vector<Weights>& weightings) {
  solve_as<float>(weightings);
}

template <typename Value>
void WeightedProbe::solve_as(const std::vector<Weights>& weightings) {
  const std::size_t first = weights_.size();
  weights_.insert(weights_.end(), weightings.begin(), weightings.end());
  optima_.resize(weights_.size());
  costs_.resize(weights_.size());
  std::vector<KnownStrategy> found(weightings.size());
  workers_.run(static_cast<int>(weightings.size()),
               [&](int i) { found[i] = best_strategy<Value>(first + i); });
  for (KnownStrategy& strategy : found) {
    if (!strategy.points.empty()) strategies_.push_back(std::move(strategy));
  }
  strategies_ = pareto(std::move(strategies_));
}

// Without points if there is no strategy.
template <typename Value>
KnownStrategy WeightedProbe::best_strategy(std::size_t w) {
  MinPlusPass<Value> pass(graph_, memory_);
  pass.run_inside(weights_[w]);
  optima_[w] = pass.optimum();
  if (std::isinf(pass.optimum())) return {};
  pass.run_outside(depth_);
  costs_[w].resize(graph_.pool().size());
  for (const int id : graph_.order()) {
    if (!tells_about(id)) continue;
    const auto inside = pass.inside(id);
    const auto outside = pass.outside(id);
    std::vector<float>& costs = costs_[w][id];
    costs.resize(inside.size());
    for (std::size_t cell = 0; cell < costs.size(); ++cell) {
      costs[cell] = bound_as_float(inside[cell] + outside[cell]);
    }
  }
  std::vector<std::uint32_t> points = pass.trace(schedule_);
  const Point cost = cost_of(points, schedule_, graph_);
  return {cost, std::move(points)};
}

bool WeightedProbe::may_improve(int id, std::size_t cell,
                                const ZoneLimits& limits) const {
  std::uint64_t open = limits.all();
  for (std::size_t w = 0; w < limits.num_weights() && open != 0; ++w) {
    open &= limits.above(w, costs_[w][id][cell]);
  }
  return open != 0;
}

std::int64_t WeightedProbe::estimate_alive(const ZoneLimits& limits) const {
  std::size_t total = 0;
  for (const int id : graph_.order()) total += graph_.volume(id);
  // Odd, to be in step with few tables.
  const std::size_t stride = total / kSamples | 1;
  std::int64_t alive = 0;
  std::size_t cell = 0;  // over all tables
  for (const int id : graph_.order()) {
    const std::size_t volume = graph_.volume(id);
    for (; cell < volume; cell += stride) {
      alive += may_improve(id, cell, limits) ? 1 : 0;
    }
    cell -= volume;
  }
  return alive * static_cast<std::int64_t>(stride);
}

}  // namespace tensoropt
