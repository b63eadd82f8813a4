#include "reshard/moves.h"

#include "common/check.h"

namespace tensoropt {

namespace {

// The step kind of a change, if there is one.
std::optional<StepKind> kind_of(const Change& change) {
  const auto& [before, after] = change;
  if (before == after) return std::nullopt;
  if (before.is_shard()) {
    if (after.is_partial()) return std::nullopt;
    return after.is_shard() ? StepKind::kAllToAll : StepKind::kAllGather;
  }
  if (before.is_partial()) {
    return after.is_shard() ? StepKind::kReduceScatter : StepKind::kAllReduce;
  }
  return after.is_shard() ? StepKind::kSlice : StepKind::kMask;
}

// True if the axes are the innermost ones that shard `dim`.
bool is_suffix(AxisSet axes, AxisSet sharding) {
  return (axes & ~axes_below(sharding & ~axes)) == 0;
}

// The order of axes: moved axes are the least significant ones of the dim they
// leave and of the dim they join. All of them must have one placement.
bool ordered(const Layout& layout, AxisSet axes, const Change& change) {
  const std::array<AxisSet, 16> sets = axes_by_code(layout);
  if (axes & ~sets[change.before.code()]) return false;
  if (change.before.is_shard() &&
      !is_suffix(axes, sets[change.before.code()])) {
    return false;
  }
  return !change.after.is_shard() ||
         (axes & ~axes_below(sets[change.after.code()])) == 0;
}

}  // namespace

AllowedAxes any_placement(int num_axes, int num_dims) {
  AllowedAxes allowed{};
  for (int code = 0; code < Placement::shard(num_dims).code(); ++code) {
    allowed[code] = (AxisSet{1} << num_axes) - 1;
  }
  return allowed;
}

Layout apply(const Step& step, const Layout& layout) {
  const Placement after = change_of(step).after;
  Layout result = layout;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (step.axes >> axis & 1) result.set(axis, after);
  }
  return result;
}

bool legal(const Step& step, const Layout& layout,
           std::span<const std::int64_t> shape, const Mesh& mesh) {
  if (step.axes == 0 || step.axes >> layout.num_axes() != 0) return false;
  return ordered(layout, step.axes, change_of(step)) &&
         divides(shape, apply(step, layout), mesh);
}

std::optional<Step> step_between(const Layout& before, const Layout& after) {
  AxisSet axes = 0;
  Change change;
  for (int axis = 0; axis < before.num_axes(); ++axis) {
    if (before[axis] == after[axis]) continue;
    const Change here{before[axis], after[axis]};
    if (axes == 0) change = here;
    if (here.before != change.before || here.after != change.after) {
      return std::nullopt;
    }
    axes |= AxisSet{1} << axis;
  }
  const std::optional<StepKind> kind = kind_of(change);
  if (!kind || !ordered(before, axes, change)) return std::nullopt;
  Step step{*kind, axes, change.before.dim(), -1};
  if (*kind == StepKind::kAllToAll) {
    step.to_dim = change.after.dim();
  } else if (change.after.is_shard()) {
    step.dim = change.after.dim();
  }
  return step;
}

std::string to_string(const Step& step) {
  static constexpr std::array<std::string_view, 6> kNames{
      "all_gather", "reduce_scatter", "all_reduce",
      "all_to_all", "slice",          "mask"};
  std::string text{kNames[static_cast<int>(step.kind)]};
  text += '(';
  if (step.dim >= 0) text += str_format("dim {}, ", step.dim);
  if (step.to_dim >= 0) text += str_format("to dim {}, ", step.to_dim);
  return text + str_format("axes {:#b})", step.axes);
}

std::string to_string(const Steps& steps) {
  std::string text;
  for (const Step& step : steps) {
    if (!text.empty()) text += "; ";
    text += to_string(step);
  }
  return text;
}

}  // namespace tensoropt
