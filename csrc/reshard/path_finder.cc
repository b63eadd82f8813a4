#include "reshard/path_finder.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
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
Steps steps_to(const LayoutGraph& graph, int source, int target,
               const Parent& parent) {
  Steps steps;
  for (int node = target; node != source; node = parent(node)) {
    steps.push_back(
        *step_between(graph.layout_of(parent(node)), graph.layout_of(node)));
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
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

// The shortest paths in one layout graph: a tree for each layout that a reshard
// starts from.
class PathTrees {
 public:
  PathTrees(const MoveCosts& costs, AxisRuns runs, const AllowedAxes& allowed)
      : layouts_(costs, std::move(runs), allowed),
        graph_(layouts_),
        trees_(graph_.num_nodes()) {}

  ~PathTrees() {
    for (std::atomic<Tree*>& tree : trees_) delete tree.load();
  }
  PathTrees(const PathTrees&) = delete;
  PathTrees& operator=(const PathTrees&) = delete;

  // The layouts must be in the graph.
  double time_s(const Layout& from, const Layout& to) {
    return tree_of(layouts_.index_of(from)).time_s[layouts_.index_of(to)];
  }

  // The same if the tree is built already, else infinite. For any layouts:
  // trees begin at layouts that were checked, and no path leads to one that
  // does not fit.
  double known_s(const Layout& from, const Layout& to) const {
    const int source = layouts_.index_of(from);
    const int target = layouts_.index_of(to);
    const Tree* tree = source < 0 || target < 0
                           ? nullptr
                           : trees_[source].load(std::memory_order_acquire);
    return tree ? tree->time_s[target] : std::numeric_limits<float>::infinity();
  }

  Steps steps(const Layout& from, const Layout& to) {
    const int source = layouts_.index_of(from);
    const Tree& tree = tree_of(source);
    const auto parent = [&](int node) { return int{tree.parent[node]}; };
    return steps_to(layouts_, source, layouts_.index_of(to), parent);
  }

 private:
  // Threads that need one tree at once all build it; the first is kept.
  const Tree& tree_of(int source) {
    std::atomic<Tree*>& slot = trees_[source];
    Tree* tree = slot.load(std::memory_order_acquire);
    if (tree) return *tree;
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

// Alike neighbours that go from one placement to one placement are tied: the
// axes that are tied to the one before.
AxisSet tied_between(const Mesh& mesh, const Layout& from, const Layout& to) {
  AxisSet tied = 0;
  for (int axis = 1; axis < from.num_axes(); ++axis) {
    if (from[axis - 1] == from[axis] && to[axis - 1] == to[axis] &&
        mesh.alike(axis - 1, axis)) {
      tied |= AxisSet{1} << axis;
    }
  }
  return tied;
}

AxisRuns runs_of(AxisSet tied, int num_axes) {
  AxisRuns runs;
  for (int axis = 0; axis < num_axes; ++axis) {
    if ((tied >> axis & 1) == 0) runs.push_back(0);
    runs.back() |= AxisSet{1} << axis;
  }
  return runs;
}

// Replicate, Partial and those of the dims that a run can split.
AllowedAxes all_placements(const MoveCosts& costs, const AxisRuns& runs,
                           std::uint32_t dims) {
  AllowedAxes allowed =
      any_placement(static_cast<int>(runs.size()), costs.num_dims());
  for (int dim = 0; dim < costs.num_dims(); ++dim) {
    for (std::size_t run = 0; run < runs.size(); ++run) {
      if ((dims >> dim & 1) == 0 || !costs.fits(dim, runs[run])) {
        allowed[Placement::shard(dim).code()] &= ~(AxisSet{1} << run);
      }
    }
  }
  return allowed;
}

std::int64_t num_layouts(const AllowedAxes& allowed, std::size_t num_runs) {
  std::int64_t count = 1;
  for (std::size_t run = 0; run < num_runs; ++run) {
    count *= std::count_if(allowed.begin(), allowed.end(),
                           [&](AxisSet set) { return set >> run & 1; });
    if (count > std::numeric_limits<int>::max()) break;
  }
  return count;
}

// Every path is a lookup in the trees of the one graph of all layouts.
class ExactFinder : public PathFinder {
 public:
  ExactFinder(MoveCosts costs, std::uint32_t dims, const AllowedAxes& allowed)
      : PathFinder(std::move(costs), dims),
        trees_(costs_, single_axes(costs_.mesh()), allowed) {}

  bool is_exact() const override { return true; }

  std::optional<double> time_s(const Layout& from, const Layout& to) override {
    if (from != to) {
      const double known_s = trees_.known_s(from, to);
      if (known_s < std::numeric_limits<double>::infinity()) return known_s;
    }
    check(from);
    check(to);
    return from == to ? 0 : trees_.time_s(from, to);
  }

  FoundPath find(const Layout& from, const Layout& to) override {
    const double path_s = *time_s(from, to);
    if (from == to) return {};
    return {trees_.steps(from, to), path_s};
  }

 private:
  PathTrees trees_;
};

// A graph for each way to tie axes into runs, as long as it is small enough;
// else searches anew for each pair, over few placements.
class TiedFinder : public PathFinder {
 public:
  TiedFinder(MoveCosts costs, std::uint32_t dims, int max_layouts)
      : PathFinder(std::move(costs), dims),
        max_layouts_(max_layouts),
        known_(std::size_t{1} << costs_.mesh().num_axes()) {}

  bool is_exact() const override { return false; }

  std::optional<double> time_s(const Layout& from, const Layout& to) override {
    const double known_s = this->known_s(from, to);
    if (known_s < std::numeric_limits<double>::infinity()) return known_s;
    check(from);
    check(to);
    if (from == to) return 0;
    PathTrees* trees = trees_of(tied_between(costs_.mesh(), from, to));
    if (trees == nullptr) return std::nullopt;
    return trees->time_s(from, to);
  }

  FoundPath find(const Layout& from, const Layout& to) override {
    check(from);
    check(to);
    if (from == to) return {};
    PathTrees* trees = trees_of(tied_between(costs_.mesh(), from, to));
    if (trees == nullptr) return search(from, to);
    return {trees->steps(from, to), trees->time_s(from, to)};
  }

 private:
  // Infinite if it was not asked for before.
  double known_s(const Layout& from, const Layout& to) const {
    const int num_axes = costs_.mesh().num_axes();
    const PathTrees* trees = nullptr;
    if (from != to && from.num_axes() == num_axes &&
        to.num_axes() == num_axes) {
      const AxisSet tied = tied_between(costs_.mesh(), from, to);
      trees = known_[tied].load(std::memory_order_acquire);
    }
    return trees ? trees->known_s(from, to)
                 : std::numeric_limits<double>::infinity();
  }

  // Null if there are too many layouts.
  PathTrees* trees_of(AxisSet tied) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [entry, added] = trees_.try_emplace(tied);
    if (added) {
      const AxisRuns runs = runs_of(tied, costs_.mesh().num_axes());
      const AllowedAxes allowed = all_placements(costs_, runs, dims_);
      if (num_layouts(allowed, runs.size()) <= max_layouts_) {
        entry->second = std::make_unique<PathTrees>(costs_, runs, allowed);
        known_[tied].store(entry->second.get(), std::memory_order_release);
      }
    }
    return entry->second.get();
  }

  // Over Replicate and the placements of the two ends.
  FoundPath search(const Layout& from, const Layout& to) const {
    AxisRuns runs = runs_of(tied_between(costs_.mesh(), from, to),
                            costs_.mesh().num_axes());
    AllowedAxes allowed{};
    for (std::size_t run = 0; run < runs.size(); ++run) {
      const int axis = std::countr_zero(runs[run]);
      for (const Placement placement :
           {Placement::replicate(), from[axis], to[axis]}) {
        allowed[placement.code()] |= AxisSet{1} << run;
      }
    }
    const LayoutGraph graph(costs_, std::move(runs), allowed);
    const int source = graph.index_of(from);
    const int target = graph.index_of(to);
    const auto labels = shortest_paths(graph, source, target);
    const auto parent = [&](int node) { return labels[node].parent; };
    return {steps_to(graph, source, target, parent),
            to_seconds(labels[target].time_ps)};
  }

  const int max_layouts_;
  std::mutex mutex_;
  std::map<AxisSet, std::unique_ptr<PathTrees>> trees_;  // by tied axes
  std::vector<std::atomic<PathTrees*>> known_;           // the same
};

}  // namespace

void PathFinder::check(const Layout& layout) const {
  TO_CHECK(layout.num_axes() == costs_.mesh().num_axes(),
           "layout {} has {} placements, the mesh {} axes", layout.to_string(),
           layout.num_axes(), costs_.mesh().num_axes());
  TO_CHECK(costs_.fits(layout),
           "layout {} does not divide the tensor, and its parts may not differ",
           layout.to_string());
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    TO_CHECK(!layout[axis].is_shard() || (dims_ >> layout[axis].dim() & 1),
             "layout {} splits a dim of the tensor that was said to be whole",
             layout.to_string());
  }
}

std::unique_ptr<PathFinder> make_path_finder(MoveCosts costs, int max_layouts,
                                             std::uint32_t dims) {
  const AxisRuns axes = single_axes(costs.mesh());
  const AllowedAxes allowed = all_placements(costs, axes, dims);
  if (num_layouts(allowed, axes.size()) <= max_layouts) {
    return std::make_unique<ExactFinder>(std::move(costs), dims, allowed);
  }
  return std::make_unique<TiedFinder>(std::move(costs), dims, max_layouts);
}

}  // namespace tensoropt
