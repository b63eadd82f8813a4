// What the moves of step.h do to layouts, and which ones a layout allows.
//
//   for_each_move(layout, any_placement(mesh.num_axes(), num_dims),
//                 [&](const Step& step) { visit(apply(step, layout)); });
//
// Between two layouts there is at most one move (`step_between`).
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "reshard/step.h"

namespace tensoropt {

// For each placement code the mesh axes on which it may appear.
using AllowedAxes = std::array<AxisSet, 16>;

// Replicate, Partial and Shard of the first `num_dims` dims on every axis.
AllowedAxes any_placement(int num_axes, int num_dims);

// Placements of the moved axes before and after a step.
struct Change {
  Placement before;
  Placement after;
};
inline Change change_of(const Step& step) {
  constexpr Placement kReplicate = Placement::replicate();
  constexpr Placement kPartial = Placement::partial();
  switch (step.kind) {
    case StepKind::kAllGather:
      return {Placement::shard(step.dim), kReplicate};
    case StepKind::kReduceScatter:
      return {kPartial, Placement::shard(step.dim)};
    case StepKind::kAllReduce:
      return {kPartial, kReplicate};
    case StepKind::kAllToAll:
      return {Placement::shard(step.dim), Placement::shard(step.to_dim)};
    case StepKind::kSlice:
      return {kReplicate, Placement::shard(step.dim)};
    case StepKind::kMask:
      return {kReplicate, kPartial};
  }
  return {};
}

// The layout after the step. Requires a legal step.
Layout apply(const Step& step, const Layout& layout);

// True if the layout allows the step (order of axes included) and the layout
// after it divides the shape.
bool legal(const Step& step, const Layout& layout,
           std::span<const std::int64_t> shape, const Mesh& mesh);

// The move from one layout to the other, if one does it.
std::optional<Step> step_between(const Layout& before, const Layout& after);

// "all_gather(dim 0, axes 0b11)"; steps of a program are joined by "; ".
std::string to_string(const Step& step);
std::string to_string(const Steps& steps);

// The axes of a layout by placement code.
inline std::array<AxisSet, 16> axes_by_code(const Layout& layout) {
  std::array<AxisSet, 16> sets{};
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    sets[layout[axis].code()] |= AxisSet{1} << axis;
  }
  return sets;
}

// The axes inside (less significant than) all axes of `set`.
inline AxisSet axes_below(AxisSet set) {
  AxisSet outer = set;  // fill all bits up to the highest one
  for (int shift = 1; shift < 32; shift *= 2) outer |= outer >> shift;
  return ~outer;
}

// Calls visit(subset) for every subset of `set` but the empty one.
template <typename Visit>
void for_each_subset(AxisSet set, const Visit& visit) {
  for (AxisSet subset = set; subset != 0; subset = (subset - 1) & set) {
    visit(subset);
  }
}

// Calls visit(suffix) for the sets of the 1, 2, ... innermost axes of `set`.
template <typename Visit>
void for_each_suffix(AxisSet set, const Visit& visit) {
  for (AxisSet rest = set; rest != 0; rest &= rest - 1) visit(rest);
}

// Calls visit(Step) for every move that the order of axes allows and that ends
// in allowed placements; whether sizes divide is not asked. The order of visits
// is fixed.
template <typename Visit>
void for_each_move(const Layout& layout, const AllowedAxes& allowed,
                   const Visit& visit) {
  constexpr int kReplicate = Placement::replicate().code();
  constexpr int kPartial = Placement::partial().code();
  constexpr int kShard0 = Placement::shard(0).code();
  const std::array<AxisSet, 16> axes = axes_by_code(layout);

  for_each_subset(axes[kPartial] & allowed[kReplicate], [&](AxisSet set) {
    visit(Step{StepKind::kAllReduce, set, -1, -1});
  });
  for_each_subset(axes[kReplicate] & allowed[kPartial], [&](AxisSet set) {
    visit(Step{StepKind::kMask, set, -1, -1});
  });
  for (int code = kShard0; code < 16; ++code) {
    const int dim = code - kShard0;
    const AxisSet into = allowed[code] & axes_below(axes[code]);
    for_each_subset(axes[kPartial] & into, [&](AxisSet set) {
      visit(Step{StepKind::kReduceScatter, set, dim, -1});
    });
    for_each_subset(axes[kReplicate] & into, [&](AxisSet set) {
      visit(Step{StepKind::kSlice, set, dim, -1});
    });
    for_each_suffix(axes[code], [&](AxisSet set) {
      if ((set & ~allowed[kReplicate]) == 0) {
        visit(Step{StepKind::kAllGather, set, dim, -1});
      }
      for (int to = kShard0; to < 16; ++to) {
        if (to == code) continue;
        if (set & ~(allowed[to] & axes_below(axes[to]))) continue;
        visit(Step{StepKind::kAllToAll, set, dim, to - kShard0});
      }
    });
  }
}

}  // namespace tensoropt
