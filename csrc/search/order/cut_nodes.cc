#include "search/order/cut_nodes.h"

#include <algorithm>
#include <set>

namespace tensoropt {

namespace {

// Tarjan's depth-first search, with its own stack: graphs may be long chains.
class ArticulationSearch {
 public:
  explicit ArticulationSearch(const Adjacency& graph)
      : graph_(graph),
        order_(graph.size(), 0),
        low_(graph.size(), 0),
        cut_(graph.size(), false) {}

  std::vector<bool> run() {
    for (int root = 0; root < static_cast<int>(graph_.size()); ++root) {
      if (order_[root] == 0) run_from(root);
    }
    return cut_;
  }

 private:
  struct Frame {
    int node;
    int parent;
    std::size_t next = 0;
  };

  void enter(int node, int parent) {
    order_[node] = low_[node] = ++counter_;
    stack_.push_back({node, parent});
  }

  void run_from(int root) {
    int root_children = 0;
    enter(root, -1);
    while (!stack_.empty()) {
      Frame& frame = stack_.back();
      const int node = frame.node;
      if (frame.next == graph_[node].size()) {
        const int parent = frame.parent;
        stack_.pop_back();
        if (parent < 0) continue;
        low_[parent] = std::min(low_[parent], low_[node]);
        if (parent == root) {
          ++root_children;
        } else if (low_[node] >= order_[parent]) {
          cut_[parent] = true;
        }
        continue;
      }
      const int other = graph_[node][frame.next++];
      if (order_[other] == 0) {
        enter(other, node);
      } else if (other != frame.parent) {
        low_[node] = std::min(low_[node], order_[other]);
      }
    }
    cut_[root] = root_children > 1;
  }

  const Adjacency& graph_;
  std::vector<int> order_;
  std::vector<int> low_;
  std::vector<bool> cut_;
  std::vector<Frame> stack_;
  int counter_ = 0;
};

Adjacency induced(const Adjacency& graph, const std::vector<bool>& kept) {
  Adjacency result(graph.size());
  for (std::size_t n = 0; n < graph.size(); ++n) {
    if (!kept[n]) continue;
    for (const int m : graph[n]) {
      if (kept[m]) result[n].push_back(m);
    }
  }
  return result;
}

}  // namespace

std::vector<bool> articulation_nodes(const Adjacency& graph) {
  return ArticulationSearch(graph).run();
}

std::vector<bool> two_core(const Adjacency& graph) {
  std::vector<bool> kept(graph.size(), true);
  std::vector<std::size_t> degree;
  std::vector<int> leaves;
  for (std::size_t n = 0; n < graph.size(); ++n) {
    degree.push_back(graph[n].size());
    if (degree[n] <= 1) leaves.push_back(static_cast<int>(n));
  }
  while (!leaves.empty()) {
    const int leaf = leaves.back();
    leaves.pop_back();
    kept[leaf] = false;
    for (const int m : graph[leaf]) {
      if (kept[m] && --degree[m] == 1) leaves.push_back(m);
    }
  }
  return kept;
}

std::vector<bool> find_cut_nodes(const Adjacency& graph,
                                 const std::vector<const void*>& kind) {
  const std::vector<bool> core = two_core(graph);
  std::vector<bool> cut = articulation_nodes(induced(graph, core));
  std::set<const void*> cut_kinds;
  for (std::size_t n = 0; n < graph.size(); ++n) {
    if (cut[n]) cut_kinds.insert(kind[n]);
  }
  for (std::size_t n = 0; n < graph.size(); ++n) {
    if (!core[n]) {
      cut[n] = graph[n].size() > 1;
    } else if (!cut[n] && cut_kinds.contains(kind[n])) {
      cut[n] = std::any_of(graph[n].begin(), graph[n].end(),
                           [&](int m) { return !core[m]; });
    }
  }
  return cut;
}

}  // namespace tensoropt
