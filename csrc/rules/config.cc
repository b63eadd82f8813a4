#include "rules/config.h"

#include <algorithm>

#include "common/check.h"

namespace tensoropt {

namespace {

// Walks all assignments of one of `num_uses` choices to each axis, choices of
// alike axes in nondecreasing order unless the space is full, with at most so
// many runs. `fits(choice, parts, axes)` says whether a choice can be cut by
// these axes if every choice is cut into so many `parts`.
class AssignmentWalk {
 public:
  using Parts = std::vector<std::int64_t>;
  using Fits =
      std::function<bool(int choice, const Parts& parts, AxisSet axes)>;
  using Emit = std::function<void(const std::vector<int>&)>;

  AssignmentWalk(const Mesh& mesh, const ConfigLimits& limits, int num_choices,
                 Fits fits)
      : mesh_(mesh),
        limits_(limits),
        parts_(num_choices, 1),
        axes_(num_choices, 0),
        fits_(std::move(fits)) {}

  void run(const Emit& emit) { visit(0, emit); }

 private:
  void visit(int runs, const Emit& emit) {
    const int axis = static_cast<int>(chosen_.size());
    if (axis == mesh_.num_axes()) return emit(chosen_);
    const bool tied = limits_.space == ConfigSpace::kOrdered && axis > 0 &&
                      mesh_.alike(axis - 1, axis);
    const int first = tied ? chosen_.back() : 0;
    for (int choice = first; choice < static_cast<int>(parts_.size());
         ++choice) {
      const bool same = axis > 0 && choice == chosen_.back();
      if (!same && runs == limits_.max_runs) continue;
      const std::int64_t before = parts_[choice];
      parts_[choice] *= mesh_.size(axis);
      axes_[choice] |= AxisSet{1} << axis;
      if (fits_(choice, parts_, axes_[choice])) {
        chosen_.push_back(choice);
        visit(same ? runs : runs + 1, emit);
        chosen_.pop_back();
      }
      parts_[choice] = before;
      axes_[choice] &= ~(AxisSet{1} << axis);
    }
  }

  const Mesh& mesh_;
  const ConfigLimits limits_;
  Parts parts_;
  std::vector<AxisSet> axes_;
  std::vector<int> chosen_;
  Fits fits_;
};

// How a choice is cut.
struct Cut {
  std::int64_t size = 1;
  std::int64_t parts = 1;
  AxisSet axes = 0;
  bool uneven = false;  // parts may differ
};

// Whether parts are equal, or may differ and none is empty; if not, the choice
// goes to `left_out`, if there is one.
bool may_cut(const Cut& cut, const Mesh& mesh, int choice,
             UnevenSplits* left_out) {
  if (splits_evenly(cut.size, cut.parts)) return true;
  if (cut.uneven && cut.size >= cut.parts &&
      !has_empty_part(cut.size, cut.axes, mesh)) {
    return true;
  }
  if (left_out) left_out->emplace(choice, cut.parts);
  return false;
}

bool is_reduction(const Rule& rule, int factor) {
  return std::none_of(rule.outputs.begin(), rule.outputs.end(),
                      [&](const TensorRule& output) {
                        return dim_of(rule, output, factor) >= 0;
                      });
}

void apply_factor(const Rule& rule, int axis, int factor,
                  OpInterface& interface) {
  const bool reduction = is_reduction(rule, factor);
  const bool combined = rule.factors[factor].kind == FactorKind::kCombined;
  for (std::size_t i = 0; i < rule.operands.size(); ++i) {
    const int dim = dim_of(rule, rule.operands[i], factor);
    Port& port = interface.operands[i];
    if (dim >= 0) {
      port.value.set(axis, Placement::shard(dim));
      port.gradient.set(axis, Placement::shard(dim));
    } else if (reduction && rule.operands[i].additive) {
      port.value.set(axis, Placement::partial());
    } else {
      port.gradient.set(axis, Placement::partial());
    }
  }
  for (std::size_t i = 0; i < rule.outputs.size(); ++i) {
    const int dim = dim_of(rule, rule.outputs[i], factor);
    Port& port = interface.outputs[i];
    if (dim >= 0) {
      port.value.set(axis, Placement::shard(dim));
      port.gradient.set(axis, Placement::shard(dim));
    } else if (!combined) {
      port.value.set(axis, Placement::partial());
    }
  }
}

// Whether the dims of this factor, and of those that it splits at once, are in
// equal parts where joint factors cut them as well.
bool fits_joint(const Rule& rule, int factor,
                const std::vector<std::int64_t>& parts) {
  std::int64_t cuts = parts[factor];
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    const std::vector<int>& joint = rule.factors[f].joint;
    if (std::find(joint.begin(), joint.end(), factor) != joint.end()) {
      cuts *= parts[f];
    }
  }
  const std::vector<int>& members = rule.factors[factor].joint;
  const bool alone = cuts == parts[factor];
  return (alone || splits_evenly(rule.factors[factor].count(), cuts)) &&
         std::all_of(members.begin(), members.end(), [&](int member) {
           return fits_joint(rule, member, parts);
         });
}

void apply_linear(const Rule& rule, int axis, int set, OpInterface& interface) {
  const std::vector<int>& members = rule.linear_sets[set];
  for (std::size_t i = 0; i < rule.operands.size(); ++i) {
    const bool member = std::find(members.begin(), members.end(),
                                  static_cast<int>(i)) != members.end();
    Port& port = interface.operands[i];
    (member ? port.value : port.gradient).set(axis, Placement::partial());
  }
  for (Port& port : interface.outputs) {
    port.value.set(axis, Placement::partial());
  }
}

}  // namespace

std::vector<OpConfig> enumerate_configs(const Rule& rule, const Mesh& mesh,
                                        const ConfigLimits& limits,
                                        UnevenSplits* left_out) {
  const int num_factors = static_cast<int>(rule.factors.size());
  const int num_sets = static_cast<int>(rule.linear_sets.size());
  const auto fits = [&](int choice, const std::vector<std::int64_t>& parts,
                        AxisSet axes) {
    if (choice >= num_factors) return true;
    const Factor& factor = rule.factors[choice];
    const Cut cut{factor.count(), parts[choice], axes, factor.uneven};
    return may_cut(cut, mesh, choice, left_out) &&
           fits_joint(rule, choice, parts);
  };
  std::vector<OpConfig> configs;
  AssignmentWalk walk(mesh, limits, num_factors + num_sets + 1, fits);
  walk.run([&](const std::vector<int>& choices) {
    OpConfig config;
    for (const int choice : choices) {
      const int set = choice - num_factors;
      config.push_back(set < 0           ? AxisUse::factor(choice)
                       : set == num_sets ? AxisUse::none()
                                         : AxisUse::linear(set));
    }
    configs.push_back(std::move(config));
  });
  return configs;
}

int dim_of(const Rule& rule, const TensorRule& tensor, int factor) {
  const std::vector<int>& joint = rule.factors[factor].joint;
  const auto found =
      std::find_if(tensor.dims.begin(), tensor.dims.end(), [&](int bound) {
        return bound == factor ||
               std::find(joint.begin(), joint.end(), bound) != joint.end();
      });
  return found == tensor.dims.end()
             ? -1
             : static_cast<int>(found - tensor.dims.begin());
}

OpInterface interface_of(const Rule& rule, const OpConfig& config) {
  const int axes = static_cast<int>(config.size());
  const Port replicated{Layout::replicated(axes), Layout::replicated(axes)};
  OpInterface interface {
    std::vector<Port>(rule.operands.size(), replicated),
        std::vector<Port>(rule.outputs.size(), replicated)
  };
  for (int axis = 0; axis < axes; ++axis) {
    const AxisUse use = config[axis];
    if (use.is_factor()) {
      apply_factor(rule, axis, use.factor_index(), interface);
    } else if (use.is_linear()) {
      apply_linear(rule, axis, use.linear_set(), interface);
    }
  }
  return interface;
}

std::vector<AxisSet> factor_axes(const Rule& rule, const OpConfig& config) {
  std::vector<AxisSet> axes(rule.factors.size(), 0);
  for (std::size_t axis = 0; axis < config.size(); ++axis) {
    if (config[axis].is_factor()) {
      axes[config[axis].factor_index()] |= AxisSet{1} << axis;
    }
  }
  return axes;
}

std::string label_of(const std::vector<int>& linear_set) {
  return str_format("+{}", str_join(linear_set, "."));
}

std::string to_string(const Rule& rule, const OpConfig& config) {
  std::string text;
  for (std::size_t axis = 0; axis < config.size(); ++axis) {
    if (axis > 0) text += ',';
    const AxisUse use = config[axis];
    if (use.is_factor()) {
      text += rule.factors[use.factor_index()].name;
    } else if (use.is_linear()) {
      text += label_of(rule.linear_sets[use.linear_set()]);
    } else {
      text += '-';
    }
  }
  return text;
}

std::vector<Layout> enumerate_layouts(const Shape& shape, const Mesh& mesh,
                                      const ConfigLimits& limits, DimSet uneven,
                                      UnevenSplits* left_out) {
  const int rank = static_cast<int>(shape.size());
  const auto fits = [&](int choice, const std::vector<std::int64_t>& parts,
                        AxisSet axes) {
    if (choice == rank) return true;
    const Cut cut{shape[choice], parts[choice], axes,
                  (uneven >> choice & 1) != 0};
    return may_cut(cut, mesh, choice, left_out);
  };
  std::vector<Layout> layouts;
  AssignmentWalk walk(mesh, limits, rank + 1, fits);
  walk.run([&](const std::vector<int>& choices) {
    Layout layout = Layout::replicated(mesh.num_axes());
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      if (choices[axis] < rank) {
        layout.set(axis, Placement::shard(choices[axis]));
      }
    }
    layouts.push_back(layout);
  });
  return layouts;
}

}  // namespace tensoropt
