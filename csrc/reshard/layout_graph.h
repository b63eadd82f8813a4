// The layouts of one tensor as numbered nodes, and the moves between them as
// weighted edges. Neighbouring mesh axes can be tied into runs that always have
// the same placement, and placements can be restricted run by run.
//
//   LayoutGraph graph(costs, single_axes(mesh), allowed);
//   int node = graph.index_of(layout);     // -1 if a placement is not allowed
//   graph.for_each_edge(node, [&](int target, std::int64_t time_ps) { ... });
//
// Nodes are numbered in mixed radix, smaller placement codes first; numbers of
// layouts that do not fit the shape are left without edges into them.
// Complexity: O(axes) per index, layout or edge.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "reshard/move_costs.h"
#include "reshard/moves.h"

namespace tensoropt {

// The axes of each run, which are neighbours; outermost run first.
using AxisRuns = std::vector<AxisSet>;

// Every axis for itself.
AxisRuns single_axes(const Mesh& mesh);

class LayoutGraph {
 public:
  // `allowed` has one bit per run. Keeps a reference to `costs`. The number of
  // nodes must fit into an int.
  LayoutGraph(const MoveCosts& costs, AxisRuns runs,
              const AllowedAxes& allowed);

  int num_nodes() const { return num_nodes_; }

  // The node of a layout whose runs have one placement each; -1 if there is
  // none.
  int index_of(const Layout& layout) const;
  Layout layout_of(int node) const;

  template <typename Visit>
  void for_each_edge(int node, const Visit& visit) const;

 private:
  // The layout with one placement per run.
  Layout run_layout(int node) const;

  // The mesh axes of a set of runs.
  AxisSet axes_of(AxisSet runs) const {
    AxisSet axes = 0;
    for (; runs != 0; runs &= runs - 1) axes |= runs_[std::countr_zero(runs)];
    return axes;
  }

  // The time of a step where parts differ: that of the larger ones, of those
  // before and those after it. `runs` are those of each placement code.
  std::int64_t uneven_ps(const Step& step, std::array<AxisSet, 16> runs,
                         std::int64_t time_ps) const;

  // True if the moved axes may split the dim that they join.
  bool fits(const Step& step, Placement after, AxisSet joined_runs) const {
    if (!after.is_shard()) return true;
    return costs_->fits(after.dim(), step.axes | axes_of(joined_runs));
  }

  const MoveCosts* costs_;
  AxisRuns runs_;
  AllowedAxes allowed_;
  int num_nodes_ = 1;
  // By run and code: what the placement adds to the index; -1: not allowed.
  std::array<std::array<int, 16>, Mesh::kMaxAxes> offset_;
};

template <typename Visit>
void LayoutGraph::for_each_edge(int node, const Visit& visit) const {
  const Layout layout = run_layout(node);
  const std::array<AxisSet, 16> runs = axes_by_code(layout);
  AxisSet sharding = 0;
  for (int code = Placement::shard(0).code(); code < 16; ++code) {
    sharding |= runs[code];
  }
  const AxisSet sharded = axes_of(sharding);
  for_each_move(layout, allowed_, [&](Step step) {
    const auto [before, after] = change_of(step);
    int target = node;
    for (AxisSet rest = step.axes; rest != 0; rest &= rest - 1) {
      const auto& offset = offset_[std::countr_zero(rest)];
      target += offset[after.code()] - offset[before.code()];
    }
    step.axes = axes_of(step.axes);
    if (!fits(step, after, runs[after.code()])) return;
    const std::int64_t time_ps = costs_->time_ps(step, sharded);
    visit(target, costs_->is_even() ? time_ps : uneven_ps(step, runs, time_ps));
  });
}

}  // namespace tensoropt
