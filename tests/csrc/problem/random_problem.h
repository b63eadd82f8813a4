// Small random problems of many shapes, from a seed.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "problem/problem.h"

namespace tensoropt::testing {

using Pairs = std::vector<std::pair<int, int>>;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  // Uniform in [low, high].
  int roll(int low, int high) {
    return low + static_cast<int>(engine_() % (high - low + 1));
  }
  bool chance(int percent) { return roll(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

struct RandomTables {
  int max_configs = 4;
  int max_choices = 3;
  int density = 100;  // percent of cells that edges have
  int largest_cost = 30;
  // Costs are multiples of this, and 0 to 3 more if it is not 1.
  int cost_step = 1;
};

inline double random_cost(Dice& dice, const RandomTables& how) {
  const int steps = dice.roll(0, how.largest_cost);
  if (how.cost_step == 1) return steps;
  return static_cast<double>(how.cost_step) * steps + dice.roll(0, 3);
}

inline std::vector<Choice> random_choices(Dice& dice, const RandomTables& how) {
  std::vector<Choice> choices(dice.roll(1, how.max_choices));
  for (std::size_t i = 0; i < choices.size(); ++i) {
    choices[i].memory = random_cost(dice, how);
    choices[i].time = random_cost(dice, how);
    choices[i].tag = static_cast<std::int32_t>(i);
  }
  return choices;
}

inline std::shared_ptr<const NodeTable> random_node(Dice& dice,
                                                    const RandomTables& how,
                                                    int num_configs) {
  std::vector<std::vector<Choice>> choices(num_configs);
  for (auto& list : choices) list = random_choices(dice, how);
  return std::make_shared<NodeTable>(std::move(choices));
}

// Row 0 always has cell 0, so that sparse tables leave a strategy.
inline std::shared_ptr<const EdgeTable> random_edge(Dice& dice,
                                                    const RandomTables& how,
                                                    int sources, int targets) {
  EdgeTable::Builder builder(sources, targets);
  for (int s = 0; s < sources; ++s) {
    for (int t = 0; t < targets; ++t) {
      if ((s > 0 || t > 0) && !dice.chance(how.density)) continue;
      for (const Choice& c : random_choices(dice, how)) builder.add(s, t, c);
    }
  }
  return std::move(builder).build();
}

// A problem over the given pairs of nodes, every table of its own.
inline Problem random_problem(Dice& dice, const RandomTables& how,
                              int num_nodes, const Pairs& pairs) {
  Problem problem;
  for (int n = 0; n < num_nodes; ++n) {
    problem.nodes.push_back(
        random_node(dice, how, dice.roll(1, how.max_configs)));
  }
  for (const auto& [a, b] : pairs) {
    problem.edges.push_back(
        {a, b,
         random_edge(dice, how, problem.nodes[a]->num_configs(),
                     problem.nodes[b]->num_configs())});
  }
  return problem;
}

// --- Shapes ---------------------------------------------------------------

inline Pairs chain(int n) {
  Pairs pairs;
  for (int i = 0; i + 1 < n; ++i) pairs.emplace_back(i, i + 1);
  return pairs;
}

inline Pairs ring(int n) {
  Pairs pairs = chain(n);
  pairs.emplace_back(n - 1, 0);
  return pairs;
}

inline Pairs random_tree(Dice& dice, int n) {
  Pairs pairs;
  for (int i = 1; i < n; ++i) {
    const int parent = dice.roll(0, i - 1);
    dice.chance(50) ? pairs.emplace_back(parent, i)
                    : pairs.emplace_back(i, parent);
  }
  return pairs;
}

// Starts from one edge; puts a node on an edge or doubles an edge.
inline Pairs series_parallel(Dice& dice, int n) {
  Pairs pairs{{0, 1}};
  for (int next = 2; next < n;) {
    const int at = dice.roll(0, static_cast<int>(pairs.size()) - 1);
    const auto [a, b] = pairs[at];
    if (dice.chance(40)) {
      pairs.emplace_back(a, b);
      continue;
    }
    pairs[at] = {a, next};
    pairs.emplace_back(next++, b);
  }
  return pairs;
}

// A chain with skip connections.
inline Pairs skips(Dice& dice, int n) {
  Pairs pairs = chain(n);
  for (int i = 0; i < n / 2; ++i) {
    const int from = dice.roll(0, n - 3);
    pairs.emplace_back(from, dice.roll(from + 2, n - 1));
  }
  return pairs;
}

// A chain, all of whose nodes also use the last node.
inline Pairs hub(int n) {
  Pairs pairs = chain(n - 1);
  for (int i = 0; i < n - 1; ++i) pairs.emplace_back(n - 1, i);
  return pairs;
}

inline Pairs any_graph(Dice& dice, int n, int percent) {
  Pairs pairs;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      if (i != j && dice.chance(percent)) pairs.emplace_back(i, j);
    }
  }
  return pairs;
}

inline Pairs complete(int n) {
  Pairs pairs;
  for (int i = 0; i < n; ++i) {
    for (int j = i + 1; j < n; ++j) pairs.emplace_back(i, j);
  }
  return pairs;
}

struct Shape {
  std::string name;
  int num_nodes;
  Pairs pairs;
};

inline std::vector<Shape> all_shapes(Dice& dice) {
  const int n = dice.roll(3, 7);
  return {{"chain", n, chain(n)},
          {"ring", n, ring(n)},
          {"tree", n, random_tree(dice, n)},
          {"series_parallel", n, series_parallel(dice, n)},
          {"skips", n, skips(dice, n)},
          {"hub", n, hub(n)},
          {"any_graph", n, any_graph(dice, n, 25)},
          {"disconnected", n, any_graph(dice, n, 8)},
          {"complete", 5, complete(5)}};
}

// A chain of `num_nodes` nodes of `num_configs` configs each, every one joined
// also to the second next, as residual connections are.
inline Problem random_ladder(Dice& dice, const RandomTables& how, int num_nodes,
                             int num_configs) {
  Problem problem;
  for (int n = 0; n < num_nodes; ++n) {
    problem.nodes.push_back(random_node(dice, how, num_configs));
    for (int back = 1; back <= 2 && back <= n; ++back) {
      problem.edges.push_back(
          {n - back, n, random_edge(dice, how, num_configs, num_configs)});
    }
  }
  return problem;
}

}  // namespace tensoropt::testing
