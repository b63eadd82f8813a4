// What several tests ask of strategies and their costs.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <vector>

#include "problem/brute_force.h"
#include "problem/frontier.h"
#include "problem/problem.h"
#include "problem/strategy.h"

namespace tensoropt::testing {

inline std::ostream& operator<<(std::ostream& out, const Cost& cost) {
  return out << "(" << cost.memory << " B, " << cost.time << " s)";
}

// The cost of the choice with this tag, which must be there.
inline Cost choice_cost(std::span<const Choice> choices, std::int32_t tag) {
  for (const Choice& choice : choices) {
    if (choice.tag == tag) return {choice.memory, choice.time};
  }
  ADD_FAILURE() << "no choice has tag " << tag;
  return {};
}

// Adds the tagged choices up again, table by table.
inline Cost recompute(const Problem& problem, const Strategy& strategy) {
  Cost total;
  const auto add = [&total](Cost cost) {
    total.memory += cost.memory;
    total.time += cost.time;
  };
  for (std::size_t n = 0; n < problem.nodes.size(); ++n) {
    add(choice_cost(problem.nodes[n]->choices(strategy.config[n]),
                    strategy.node_tag[n]));
  }
  for (std::size_t e = 0; e < problem.edges.size(); ++e) {
    const Problem::Edge& edge = problem.edges[e];
    add(choice_cost(edge.table->choices(strategy.config[edge.source],
                                        strategy.config[edge.target]),
                    strategy.edge_tag[e]));
  }
  return total;
}

// Every cost of `all` is matched within the tolerance.
inline void expect_covers(const std::vector<Cost>& points,
                          const std::vector<Cost>& all, Tolerance tolerance) {
  const double rounding = 1 + 1e-12;
  const double memory_factor =
      tolerance.memory > 0 ? (1 + tolerance.memory) * rounding : 1;
  const double time_factor = (1 + tolerance.time) * rounding;
  for (const Cost& cost : all) {
    bool covered = false;
    for (const Cost& point : points) {
      covered = covered || (point.memory <= memory_factor * cost.memory &&
                            point.time <= time_factor * cost.time);
    }
    EXPECT_TRUE(covered) << cost << " is not matched within " << tolerance.time;
  }
}

// The same in both costs.
inline void expect_covers(const std::vector<Cost>& points,
                          const std::vector<Cost>& all, double epsilon) {
  expect_covers(points, all, Tolerance{epsilon, epsilon});
}

}  // namespace tensoropt::testing
