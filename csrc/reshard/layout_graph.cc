#include "reshard/layout_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/check.h"

namespace tensoropt {

AxisRuns single_axes(const Mesh& mesh) {
  AxisRuns runs;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    runs.push_back(AxisSet{1} << axis);
  }
  return runs;
}

LayoutGraph::LayoutGraph(const MoveCosts& costs, AxisRuns runs,
                         const AllowedAxes& allowed)
    : costs_(&costs), runs_(std::move(runs)), allowed_(allowed) {
  std::int64_t stride = 1;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    int digit = 0;
    for (int code = 0; code < 16; ++code) {
      const bool is_allowed = allowed[code] >> run & 1;
      offset_[run][code] = is_allowed ? static_cast<int>(stride * digit++) : -1;
    }
    stride *= digit;
    TO_CHECK(stride <= std::numeric_limits<int>::max() / 16,
             "too many layouts on {} mesh axes; use fewer devices",
             costs.mesh().num_axes());
  }
  num_nodes_ = static_cast<int>(stride);
}

int LayoutGraph::index_of(const Layout& layout) const {
  if (layout.num_axes() != costs_->mesh().num_axes()) return -1;
  int node = 0;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    const int first_axis = std::countr_zero(runs_[run]);
    const int offset = offset_[run][layout[first_axis].code()];
    if (offset < 0) return -1;
    node += offset;
  }
  return node;
}

Layout LayoutGraph::run_layout(int node) const {
  const int num_runs = static_cast<int>(runs_.size());
  Layout layout = Layout::replicated(num_runs);
  for (int run = num_runs - 1; run >= 0; --run) {
    int code = 15;
    while (offset_[run][code] < 0 || offset_[run][code] > node) --code;
    layout.set(run, Placement::from_code(code));
    node -= offset_[run][code];
  }
  return layout;
}

std::int64_t LayoutGraph::uneven_ps(const Step& step,
                                    std::array<AxisSet, 16> runs,
                                    std::int64_t time_ps) const {
  for (AxisSet& set : runs) set = axes_of(set);
  const auto [before, after] = change_of(step);
  const double excess_before = costs_->excess(runs);
  runs[before.code()] &= ~step.axes;
  runs[after.code()] |= step.axes;
  const double excess = std::max(excess_before, costs_->excess(runs));
  return std::llround(static_cast<double>(time_ps) * excess);
}

Layout LayoutGraph::layout_of(int node) const {
  const Layout by_run = run_layout(node);
  Layout layout = Layout::replicated(costs_->mesh().num_axes());
  for (int run = 0; run < by_run.num_axes(); ++run) {
    for (AxisSet rest = runs_[run]; rest != 0; rest &= rest - 1) {
      layout.set(std::countr_zero(rest), by_run[run]);
    }
  }
  return layout;
}

}  // namespace tensoropt
