#include "search/order/cut_nodes.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "problem/random_problem.h"

namespace tensoropt::testing {
namespace {

Adjacency graph_of(int num_nodes, const Pairs& pairs) {
  std::vector<std::set<int>> near(num_nodes);
  for (const auto& [a, b] : pairs) {
    near[a].insert(b);
    near[b].insert(a);
  }
  Adjacency graph;
  for (const auto& set : near) graph.emplace_back(set.begin(), set.end());
  return graph;
}

int num_components(const Adjacency& graph, int without) {
  std::vector<bool> seen(graph.size(), false);
  int count = 0;
  for (std::size_t root = 0; root < graph.size(); ++root) {
    if (seen[root] || static_cast<int>(root) == without) continue;
    ++count;
    std::vector<int> open{static_cast<int>(root)};
    seen[root] = true;
    while (!open.empty()) {
      const int node = open.back();
      open.pop_back();
      for (const int m : graph[node]) {
        if (m == without || seen[m]) continue;
        seen[m] = true;
        open.push_back(m);
      }
    }
  }
  return count;
}

TEST(Trunk, ArticulationNodesAreThoseWhoseRemovalDisconnects) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const int n = dice.roll(1, 12);
    const Adjacency graph = graph_of(n, any_graph(dice, n, dice.roll(3, 15)));
    const std::vector<bool> cut = articulation_nodes(graph);
    const int before = num_components(graph, -1);
    for (int node = 0; node < n; ++node) {
      const int isolated = graph[node].empty() ? 1 : 0;
      EXPECT_EQ(cut[node], num_components(graph, node) + isolated > before)
          << "node " << node;
    }
  }
}

TEST(Trunk, TwoCoreIsWhatIsLeftWithoutTrees) {
  // A ring 0 1 2 3 with a tail 3 - 4 - 5.
  Pairs pairs = ring(4);
  pairs.emplace_back(3, 4);
  pairs.emplace_back(4, 5);
  EXPECT_EQ(two_core(graph_of(6, pairs)),
            (std::vector<bool>{true, true, true, true, false, false}));
}

// relay 0 -> op 1 -> relay 2 -> op 3 -> relay 4, skips 0 -> 2 and 2 -> 4,
// parameters 5 and 6 at the ops, an input 7 -> 8 before.
TEST(Trunk, RelaysOfLayersAreKeptAndOperatorsAreNot) {
  const Adjacency graph = graph_of(9, {{0, 1},
                                       {1, 2},
                                       {0, 2},
                                       {2, 3},
                                       {3, 4},
                                       {2, 4},
                                       {5, 1},
                                       {6, 3},
                                       {7, 8},
                                       {8, 0}});
  int relay = 0;
  int op = 0;
  int other = 0;
  const std::vector<const void*> kind{&relay, &op,    &relay, &op,   &relay,
                                      &other, &other, &other, &other};
  EXPECT_EQ(find_cut_nodes(graph, kind),
            (std::vector<bool>{true, false, true, false, false, false, false,
                               false, true}));
}

TEST(Trunk, LongChainsNeedNoRecursion) {
  const int n = 200000;
  const std::vector<bool> cut = articulation_nodes(graph_of(n, chain(n)));
  EXPECT_FALSE(cut[0]);
  EXPECT_TRUE(cut[n / 2]);
}

}  // namespace
}  // namespace tensoropt::testing
