// One complete assignment: a config for every node, a choice for every node
// and every edge.
#pragma once

#include <cstdint>
#include <vector>

#include "search/frontier.h"
#include "search/problem.h"

namespace tensoropt {

struct Strategy {
  double memory = 0;
  double time = 0;
  std::vector<int> config;             // by node
  std::vector<std::int32_t> node_tag;  // tag of the choice, by node
  std::vector<std::int32_t> edge_tag;  // by edge
};

// A feasible strategy drawn at random: nodes in random order take a random one
// of the configs left to them, and what follows from it is propagated; choices
// are uniform. Such strategies of a large problem are much alike. `greed`, from
// 0 to 1, is the share of decisions that take the fastest given those before,
// instead of a random one. The same seed gives the same strategy on every
// machine. Throws UserError, naming a node, if there is no strategy (or none
// was found within a bounded number of backtracks).
Strategy random_strategy(const Problem& problem, std::uint64_t seed,
                         double greed = 0);

// The frontier over all choices when every node takes the given config, exact
// for epsilon = 0 and else as in SearchOptions. Throws UserError, naming the
// node or edge, if the configs are forbidden.
std::vector<Point> evaluate(const Problem& problem,
                            const std::vector<int>& config, double epsilon = 0);

}  // namespace tensoropt
