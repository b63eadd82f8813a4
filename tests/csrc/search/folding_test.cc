// Shared tables: repeated blocks are eliminated once, with the same result.

#include <gtest/gtest.h>

#include <string>

#include "problem/random_problem.h"
#include "search/checks.h"
#include "search/frontier_tracking.h"

namespace tensoropt::testing {
namespace {

// Layers relay -> inner -> relay with a skip connection and a parameter; all
// layers share their tables.
Problem layered(Dice& dice, int num_layers, bool closed) {
  const RandomTables how{.max_configs = 3, .max_choices = 2};
  const auto relay = random_node(dice, how, 3);
  const auto inner = random_node(dice, how, 2);
  const auto parameter = random_node(dice, how, 2);
  const auto in = random_edge(dice, how, 3, 2);
  const auto out = random_edge(dice, how, 2, 3);
  const auto skip = random_edge(dice, how, 3, 3);
  const auto use = random_edge(dice, how, 2, 2);
  Problem problem{{relay}, {}};
  int value = 0;
  for (int layer = 0; layer < num_layers; ++layer) {
    const int next = value + 3;
    problem.nodes.insert(problem.nodes.end(), {inner, parameter, relay});
    problem.edges.push_back({value, value + 1, in});
    problem.edges.push_back({value + 2, value + 1, use});
    problem.edges.push_back({value + 1, next, out});
    problem.edges.push_back({value, next, skip});
    value = next;
  }
  if (closed) problem.edges.push_back({value, 0, skip});
  return problem;
}

// The same problem, every table a copy of its own.
Problem unshared(const Problem& problem) {
  Problem copy = problem;
  for (auto& node : copy.nodes) node = std::make_shared<NodeTable>(*node);
  for (auto& edge : copy.edges) {
    edge.table = std::make_shared<EdgeTable>(*edge.table);
  }
  return copy;
}

TEST(Folding, SharedTablesGiveTheFrontierOfTheirCopies) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const bool closed : {false, true}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " closed " +
                   std::to_string(closed));
      Dice dice(seed);
      const Problem problem = layered(dice, dice.roll(1, 6), closed);
      const SearchResult folded = search(problem, {});
      const SearchResult copied = search(unshared(problem), {});
      EXPECT_EQ(costs(folded), costs(copied));
      expect_unrolls_exactly(problem, folded);
      EXPECT_LE(folded.stats().products_computed,
                copied.stats().products_computed);
    }
  }
}

TEST(Folding, TwoLayersEqualBruteForce) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const Problem problem = layered(dice, 2, seed % 2 == 0);
    EXPECT_EQ(costs(search(problem, {})), brute_force(problem));
  }
}

int products(int num_layers, bool closed) {
  Dice dice(5);
  SearchOptions options;
  options.use_bounds = false;  // one product for every expression
  return search(layered(dice, num_layers, closed), options)
      .stats()
      .products_computed;
}

// A layer more is a step more along the cut nodes, whatever is inside it: to
// the next relay, and to merge with its table.
TEST(Folding, LayersCostOneStepOfTheTrunkEach) {
  const int few = products(8, false);
  const int many = products(24, false);
  EXPECT_EQ(many - few, 2 * 16);
}

TEST(Folding, RingsOfEqualLayersCostLogarithmicallyManyProductsAtMost) {
  // 16 layers more may cost a step each (conditioning) but not more.
  EXPECT_LE(products(24, true) - products(8, true), 16);
}

TEST(Folding, EqualComponentsAreSolvedOnce) {
  Dice dice(3);
  Problem problem = layered(dice, 1, false);
  const Problem one = problem;
  for (int copy = 1; copy < 8; ++copy) {
    const int offset = static_cast<int>(problem.nodes.size());
    problem.nodes.insert(problem.nodes.end(), one.nodes.begin(),
                         one.nodes.end());
    for (const Problem::Edge& edge : one.edges) {
      problem.edges.push_back(
          {edge.source + offset, edge.target + offset, edge.table});
    }
  }
  SearchOptions options;
  options.use_bounds = false;
  const SearchResult single = search(one, options);
  const SearchResult eight = search(problem, options);
  EXPECT_EQ(eight.stats().products_computed,
            single.stats().products_computed + 3);
  expect_unrolls_exactly(problem, eight);
}

}  // namespace
}  // namespace tensoropt::testing
