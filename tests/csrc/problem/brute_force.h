// The oracle: all configs of all nodes, all choices, no cleverness.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "problem/problem.h"

namespace tensoropt::testing {

struct Cost {
  double memory = 0;
  double time = 0;
  friend auto operator<=>(const Cost&, const Cost&) = default;
};

// Sorted by memory, without dominated ones: by definition, not by merging.
inline std::vector<Cost> pareto(std::vector<Cost> costs) {
  std::sort(costs.begin(), costs.end());
  std::vector<Cost> kept;
  for (const Cost& cost : costs) {
    if (kept.empty() || cost.time < kept.back().time) kept.push_back(cost);
  }
  return kept;
}

// The costs of all choices once the configs are given.
inline std::vector<Cost> costs_of_configs(const Problem& problem,
                                          const std::vector<int>& config) {
  std::vector<Cost> costs{{}};
  const auto multiply = [&costs](std::span<const Choice> choices) {
    std::vector<Cost> next;
    for (const Cost& cost : costs) {
      for (const Choice& choice : choices) {
        next.push_back({cost.memory + choice.memory, cost.time + choice.time});
      }
    }
    costs = pareto(std::move(next));
  };
  for (std::size_t n = 0; n < problem.nodes.size(); ++n) {
    multiply(problem.nodes[n]->choices(config[n]));
  }
  for (const Problem::Edge& edge : problem.edges) {
    multiply(edge.table->choices(config[edge.source], config[edge.target]));
  }
  return costs;
}

// Calls `visit` for every combination of configs, feasible or not.
inline void for_all_configs(
    const Problem& problem,
    const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> config(problem.nodes.size(), 0);
  while (true) {
    visit(config);
    std::size_t n = 0;
    while (n < config.size() &&
           ++config[n] == problem.nodes[n]->num_configs()) {
      config[n++] = 0;
    }
    if (n == config.size()) return;
  }
}

// The frontier over all strategies; empty if there is none.
inline std::vector<Cost> brute_force(const Problem& problem) {
  std::vector<Cost> all;
  for_all_configs(problem, [&](const std::vector<int>& config) {
    for (const Cost& cost : costs_of_configs(problem, config)) {
      all.push_back(cost);
    }
    if (all.size() > 10000) all = pareto(std::move(all));
  });
  return pareto(std::move(all));
}

}  // namespace tensoropt::testing
