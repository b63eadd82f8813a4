// Dijkstra's algorithm with ties broken by content, not by order of visits.
//
//   std::vector<PathLabel> labels = shortest_paths(graph, source);
//   labels[node].time_ps;   // kUnreached if there is no path
//   labels[node].parent;    // the node before it, -1 at the source
//
// `graph` needs num_nodes() and for_each_edge(node, visit(target, time_ps));
// times must be positive. Among paths of equal time the one with the fewest
// steps wins, then the one whose last node but one has the smallest number, and
// so on towards the source. With `goal` >= 0 only its label and those on the
// way to it are final. Complexity: O(edges * log(nodes)).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

namespace tensoropt {

inline constexpr std::int64_t kUnreached =
    std::numeric_limits<std::int64_t>::max();

struct PathLabel {
  std::int64_t time_ps = kUnreached;
  int steps = 0;
  int parent = -1;

  bool operator<(const PathLabel& other) const {
    return std::tie(time_ps, steps, parent) <
           std::tie(other.time_ps, other.steps, other.parent);
  }
};

template <typename Graph>
std::vector<PathLabel> shortest_paths(const Graph& graph, int source,
                                      int goal = -1) {
  using Entry = std::pair<std::int64_t, int>;  // time and node
  std::vector<PathLabel> labels(graph.num_nodes());
  std::vector<Entry> heap;  // entries of labels that got better are stale
  labels[source].time_ps = 0;
  heap.emplace_back(0, source);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto [time_ps, node] = heap.back();
    heap.pop_back();
    if (node == goal) break;
    if (time_ps != labels[node].time_ps) continue;
    const int steps = labels[node].steps + 1;
    graph.for_each_edge(node, [&, node = node, time_ps = time_ps](
                                  int target, std::int64_t edge_ps) {
      const PathLabel label{time_ps + edge_ps, steps, node};
      if (!(label < labels[target])) return;
      const bool faster = label.time_ps < labels[target].time_ps;
      labels[target] = label;
      if (!faster) return;
      heap.emplace_back(label.time_ps, target);
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    });
  }
  return labels;
}

}  // namespace tensoropt
