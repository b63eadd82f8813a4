#include "reshard/path_finder.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "common/check.h"
#include "reshard/layout_graph.h"
#include "reshard/shortest_paths.h"

namespace tensoropt {

namespace {

double to_seconds(std::int64_t time_ps) {
  return time_ps == kUnreached ? std::numeric_limits<double>::infinity()
                               : static_cast<double>(time_ps) * 1e-12;
}

// The path to `target` when `parent(node)` is the node before.
template <typename Parent>
Program program_to(const LayoutGraph& graph, int source, int target,
                   const Parent& parent) {
  Program program;
  for (int node = target; node != source; node = parent(node)) {
    program.push_back(
        *step_between(graph.layout_of(parent(node)), graph.layout_of(node)));
  }
  std::reverse(program.begin(), program.end());
  return program;
}

// The edges of all nodes, in one array.
class StoredGraph {
 public:
  explicit StoredGraph(const LayoutGraph& graph) {
    for (int node = 0; node < graph.num_nodes(); ++node) {
      graph.for_each_edge(node, [&](int target, std::int64_t time_ps) {
        edges_.push_back({time_ps, target});
      });
      ends_.push_back(edges_.size());
    }
  }

  int num_nodes() const { return static_cast<int>(ends_.size()); }

  template <typename Visit>
  void for_each_edge(int node, const Visit& visit) const {
    const std::size_t begin = node == 0 ? 0 : ends_[node - 1];
    for (std::size_t i = begin; i < ends_[node]; ++i) {
      visit(edges_[i].target, edges_[i].time_ps);
    }
  }

 private:
  struct Edge {
    std::int64_t time_ps;
    int target;
  };
  std::vector<Edge> edges_;
  std::vector<std::size_t> ends_;
};

// All shortest paths from one layout, by node. Many trees are kept, so times
// have float's precision.
struct Tree {
  std::vector<float> time_s;  // infinite if there is no path
  std::vector<std::uint16_t> parent;
};

// Keeps a tree for each layout that a reshard starts from.
class ExactFinder : public PathFinder {
 public:
  ExactFinder(MoveCosts costs, const AllowedAxes& allowed)
      : PathFinder(std::move(costs)),
        layouts_(costs_, single_axes(costs_.mesh()), allowed),
        graph_(layouts_),
        trees_(graph_.num_nodes()) {}

  ~ExactFinder() override {
    for (std::atomic<Tree*>& tree : trees_) delete tree.load();
  }

  bool is_exact() const override { return true; }

  double time_s(const Layout& from, const Layout& to) override {
    if (from == to) {
      check(from);
      return 0;
    }
    const int target = layouts_.index_of(to);
    const Tree& tree = tree_of(from);
    if (target < 0 || !std::isfinite(tree.time_s[target])) check(to);
    return tree.time_s[target];
  }

  FoundPath find(const Layout& from, const Layout& to) override {
    const double path_s = time_s(from, to);
    if (from == to) return {};
    const Tree& tree = tree_of(from);
    const auto parent = [&](int node) { return int{tree.parent[node]}; };
    return {program_to(layouts_, layouts_.index_of(from), layouts_.index_of(to),
                       parent),
            path_s};
  }

 private:
  // Threads that need one tree at once all build it; the first is kept.
  const Tree& tree_of(const Layout& from) {
    const int source = layouts_.index_of(from);
    if (source < 0) check(from);
    std::atomic<Tree*>& slot = trees_[source];
    Tree* tree = slot.load(std::memory_order_acquire);
    if (tree) return *tree;
    check(from);
    auto fresh = std::make_unique<Tree>(build_tree(source));
    if (slot.compare_exchange_strong(tree, fresh.get(),
                                     std::memory_order_acq_rel)) {
      tree = fresh.release();
    }
    return *tree;
  }

  Tree build_tree(int source) const {
    Tree tree;
    for (const PathLabel& label : shortest_paths(graph_, source)) {
      tree.time_s.push_back(static_cast<float>(to_seconds(label.time_ps)));
      tree.parent.push_back(static_cast<std::uint16_t>(label.parent));
    }
    return tree;
  }

  const LayoutGraph layouts_;
  const StoredGraph graph_;
  std::vector<std::atomic<Tree*>> trees_;  // by source; null: not built yet
};

// Searches anew for each pair, over few placements.
class RestrictedFinder : public PathFinder {
 public:
  using PathFinder::PathFinder;

  bool is_exact() const override { return false; }

  double time_s(const Layout& from, const Layout& to) override {
    return find(from, to).time_s;
  }

  FoundPath find(const Layout& from, const Layout& to) override {
    check(from);
    check(to);
    AxisRuns runs = runs_between(from, to);
    const AllowedAxes allowed = placements_between(runs, from, to);
    const LayoutGraph graph(costs_, std::move(runs), allowed);
    const int source = graph.index_of(from);
    const int target = graph.index_of(to);
    const auto labels = shortest_paths(graph, source, target);
    const auto parent = [&](int node) { return labels[node].parent; };
    return {program_to(graph, source, target, parent),
            to_seconds(labels[target].time_ps)};
  }

 private:
  // Alike neighbours that go from one placement to one placement.
  AxisRuns runs_between(const Layout& from, const Layout& to) const {
    AxisRuns runs;
    for (int axis = 0; axis < from.num_axes(); ++axis) {
      const bool joins = axis > 0 && costs_.mesh().alike(axis - 1, axis) &&
                         from[axis - 1] == from[axis] &&
                         to[axis - 1] == to[axis];
      if (!joins) runs.push_back(0);
      runs.back() |= AxisSet{1} << axis;
    }
    return runs;
  }

  // Replicate and the placements of the two ends.
  static AllowedAxes placements_between(const AxisRuns& runs,
                                        const Layout& from, const Layout& to) {
    AllowedAxes allowed{};
    for (std::size_t run = 0; run < runs.size(); ++run) {
      const int axis = std::countr_zero(runs[run]);
      for (const Placement placement :
           {Placement::replicate(), from[axis], to[axis]}) {
        allowed[placement.code()] |= AxisSet{1} << run;
      }
    }
    return allowed;
  }
};

// Replicate, Partial and the dims that an axis can split.
AllowedAxes all_placements(const MoveCosts& costs) {
  AllowedAxes allowed =
      any_placement(costs.mesh().num_axes(), costs.num_dims());
  for (int dim = 0; dim < costs.num_dims(); ++dim) {
    for (int axis = 0; axis < costs.mesh().num_axes(); ++axis) {
      const AxisSet set = AxisSet{1} << axis;
      if (!costs.fits(dim, set)) allowed[Placement::shard(dim).code()] &= ~set;
    }
  }
  return allowed;
}

bool has_at_most(int limit, const AllowedAxes& allowed, int num_axes) {
  std::int64_t count = 1;
  for (int axis = 0; axis < num_axes && count <= limit; ++axis) {
    count *= std::count_if(allowed.begin(), allowed.end(),
                           [&](AxisSet set) { return set >> axis & 1; });
  }
  return count <= limit;
}

}  // namespace

void PathFinder::check(const Layout& layout) const {
  TO_CHECK(layout.num_axes() == costs_.mesh().num_axes(),
           "layout {} has {} placements, the mesh {} axes", layout.to_string(),
           layout.num_axes(), costs_.mesh().num_axes());
  TO_CHECK(costs_.fits(layout), "layout {} does not divide the tensor",
           layout.to_string());
}

std::unique_ptr<PathFinder> make_path_finder(MoveCosts costs,
                                             int max_exact_layouts) {
  const AllowedAxes allowed = all_placements(costs);
  if (has_at_most(max_exact_layouts, allowed, costs.mesh().num_axes())) {
    return std::make_unique<ExactFinder>(std::move(costs), allowed);
  }
  return std::make_unique<RestrictedFinder>(std::move(costs));
}

}  // namespace tensoropt
