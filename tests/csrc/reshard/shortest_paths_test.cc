#include "reshard/shortest_paths.h"

#include <gtest/gtest.h>

#include <map>

namespace tensoropt {
namespace {

// A graph given by its edges.
class EdgeList {
 public:
  EdgeList(int num_nodes, std::map<std::pair<int, int>, std::int64_t> edges)
      : num_nodes_(num_nodes), edges_(std::move(edges)) {}

  int num_nodes() const { return num_nodes_; }

  template <typename Visit>
  void for_each_edge(int node, const Visit& visit) const {
    for (const auto& [ends, time_ps] : edges_) {
      if (ends.first == node) visit(ends.second, time_ps);
    }
  }

 private:
  int num_nodes_;
  std::map<std::pair<int, int>, std::int64_t> edges_;
};

std::vector<int> path_to(const std::vector<PathLabel>& labels, int node) {
  std::vector<int> path;
  for (; node >= 0; node = labels[node].parent) path.insert(path.begin(), node);
  return path;
}

TEST(ShortestPaths, DetoursWinWhenTheyAreFaster) {
  const EdgeList graph(3, {{{0, 2}, 9}, {{0, 1}, 4}, {{1, 2}, 4}});
  const auto labels = shortest_paths(graph, 0);
  EXPECT_EQ(labels[2].time_ps, 8);
  EXPECT_EQ(path_to(labels, 2), (std::vector<int>{0, 1, 2}));
}

TEST(ShortestPaths, NodesWithoutAPathAreUnreached) {
  const auto labels = shortest_paths(EdgeList(2, {{{1, 0}, 1}}), 0);
  EXPECT_EQ(labels[0].time_ps, 0);
  EXPECT_EQ(labels[1].time_ps, kUnreached);
  EXPECT_EQ(labels[1].parent, -1);
}

TEST(ShortestPaths, AmongEqualTimesFewerStepsWin) {
  const EdgeList graph(3, {{{0, 2}, 8}, {{0, 1}, 4}, {{1, 2}, 4}});
  EXPECT_EQ(path_to(shortest_paths(graph, 0), 2), (std::vector<int>{0, 2}));
}

TEST(ShortestPaths, AmongEqualStepsTheSmallerNodeWins) {
  // Node 2 is reached first, node 1 has the smaller number.
  const EdgeList graph(4, {{{0, 2}, 1}, {{2, 3}, 3}, {{0, 1}, 2}, {{1, 3}, 2}});
  EXPECT_EQ(path_to(shortest_paths(graph, 0), 3), (std::vector<int>{0, 1, 3}));
}

TEST(ShortestPaths, TheGoalIsFinal) {
  const EdgeList graph(4, {{{0, 1}, 1}, {{1, 2}, 1}, {{0, 2}, 5}, {{2, 3}, 1}});
  const auto labels = shortest_paths(graph, 0, /*goal=*/2);
  EXPECT_EQ(labels[2].time_ps, 2);
  EXPECT_EQ(labels[3].time_ps, kUnreached);  // not looked at any more
}

}  // namespace
}  // namespace tensoropt
