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
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
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

// Nodes that were reached and whose edges were not followed yet.
class WaitingNodes {
 public:
  explicit WaitingNodes(int num_nodes)
      : block_(std::max(16, static_cast<int>(std::sqrt(num_nodes)))),
        times_ps_((num_nodes + block_ - 1) / block_ * block_, kUnreached),
        least_ps_(times_ps_.size() / block_, kUnreached) {}

  // A node that waits already is reached sooner now.
  void put(int node, std::int64_t time_ps) {
    times_ps_[node] = time_ps;
    least_ps_[node / block_] = std::min(least_ps_[node / block_], time_ps);
  }

  // One that was reached first; -1 if none waits.
  int take() {
    const auto block = std::min_element(least_ps_.begin(), least_ps_.end());
    if (*block == kUnreached) return -1;
    const auto begin = times_ps_.begin() + (block - least_ps_.begin()) * block_;
    const auto first = std::find(begin, begin + block_, *block);
    *first = kUnreached;
    *block = *std::min_element(begin, begin + block_);
    return static_cast<int>(first - times_ps_.begin());
  }

 private:
  const int block_;                     // nodes of a block
  std::vector<std::int64_t> times_ps_;  // by node
  std::vector<std::int64_t> least_ps_;  // of each block of nodes
};

template <typename Graph>
std::vector<PathLabel> shortest_paths(const Graph& graph, int source,
                                      int goal = -1) {
  std::vector<PathLabel> labels(graph.num_nodes());
  labels[source].time_ps = 0;
  WaitingNodes waiting(graph.num_nodes());
  for (int node = source; node >= 0 && node != goal; node = waiting.take()) {
    const PathLabel here = labels[node];
    graph.for_each_edge(node, [&](int target, std::int64_t time_ps) {
      const PathLabel label{here.time_ps + time_ps, here.steps + 1, node};
      if (!(label < labels[target])) return;
      if (label.time_ps < labels[target].time_ps) {
        waiting.put(target, label.time_ps);
      }
      labels[target] = label;
    });
  }
  return labels;
}

}  // namespace tensoropt
