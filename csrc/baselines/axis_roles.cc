#include "baselines/axis_roles.h"

#include <algorithm>
#include <map>

#include "common/check.h"

namespace tensoropt {

namespace {

// The factor or tensor dim that a config splits on an axis; -1: none.
int split_of(const SpaceConfig& config, std::size_t axis) {
  if (!config.uses.empty()) {
    const AxisUse use = config.uses[axis];
    return use.is_factor() ? use.factor_index() : -1;
  }
  return config.outputs[0].value[static_cast<int>(axis)].dim();
}

}  // namespace

RoleMasks::RoleMasks(const StrategySpace& space) : space_(space), dims_(space) {
  std::vector<bool> follower(space.nodes().size(), false);
  for (const SpaceEdge& edge : space.edges()) {
    if (edge.follows) follower[edge.target] = true;
  }
  std::map<Part, int> numbers;
  for (std::size_t n = 0; n < space.nodes().size(); ++n) {
    const SpaceNode& node = space.nodes()[n];
    Part part{node.configs, Kind::kFree, {}, {}};
    if (!follower[n]) part = part_of(node);
    const auto [entry, added] =
        numbers.emplace(part, static_cast<int>(parts_.size()));
    if (added) parts_.push_back(std::move(part));
    part_of_node_.push_back(entry->second);
  }
}

RoleMasks::Part RoleMasks::part_of(const SpaceNode& node) const {
  Part part{node.configs, Kind::kFree, {}, {}};
  if (node.kind == SpaceNodeKind::kRelay) {
    part.kind =
        is_parameter(space_, node.value) ? Kind::kParameterRelay : Kind::kRelay;
    add_tensor(node.value, part);
  } else if (node.kind == SpaceNodeKind::kOp) {
    part.kind = Kind::kOp;
    add_factors(space_.graph().node(node.node), part);
  } else if (node.kind == SpaceNodeKind::kSource) {
    const Node& source = space_.graph().node(node.node);
    if (source.kind == NodeKind::kParameter) {
      part.kind = Kind::kParameter;
      add_tensor(source.outputs[0], part);
    } else if (source.kind == NodeKind::kConstant) {
      part.kind = Kind::kConstant;
    }
  }
  return part;
}

void RoleMasks::add_factors(const Node& node, Part& part) const {
  const int count = static_cast<int>(space_.rule(node.id).factors.size());
  for (int f = 0; f < count; ++f) part.dims.push_back(dims_.of_factor(node, f));
  part.in_weight = weight_factors(space_, node);
}

void RoleMasks::add_tensor(ValueId value, Part& part) const {
  const int rank = space_.graph().value(value).meta.rank();
  for (int dim = 0; dim < rank; ++dim) {
    part.dims.push_back(dims_.of(value, dim));
  }
}

std::vector<ConfigMask> RoleMasks::allowed(const AxisRoles& roles) const {
  const int axes = space_.machine().mesh.num_axes();
  TO_ASSERT(static_cast<int>(roles.size()) == axes, "{} roles for {} axes",
            roles.size(), axes);
  const std::vector<AxisRoles> orders = orders_of(roles);
  std::vector<ConfigMask> masks;
  for (const Part& part : parts_) masks.push_back(mask(part, orders));
  std::vector<ConfigMask> result;
  for (const int part : part_of_node_) result.push_back(masks[part]);
  return result;
}

// All different orders of the roles of alike neighbouring axes.
std::vector<AxisRoles> RoleMasks::orders_of(const AxisRoles& roles) const {
  if (space_.options().config_space == ConfigSpace::kFull) return {roles};
  const Mesh& mesh = space_.machine().mesh;
  std::vector<AxisRoles> orders{roles};
  for (int begin = 0, end = 0; begin < mesh.num_axes(); begin = end) {
    while (end < mesh.num_axes() && mesh.alike(begin, end)) ++end;
    std::vector<AxisRoles> longer;
    for (AxisRoles order : orders) {
      std::sort(order.begin() + begin, order.begin() + end);
      do {
        longer.push_back(order);
      } while (
          std::next_permutation(order.begin() + begin, order.begin() + end));
    }
    orders = std::move(longer);
  }
  return orders;
}

ConfigMask RoleMasks::mask(const Part& part,
                           const std::vector<AxisRoles>& orders) const {
  const auto& configs = part.configs->configs;
  ConfigMask result(configs.size(), true);
  if (part.kind == Kind::kFree) return result;
  std::vector<int> scores(configs.size(), -1);
  for (std::size_t c = 0; c < configs.size(); ++c) {
    for (const AxisRoles& roles : orders) {
      scores[c] = std::max(scores[c], score(part, configs[c], roles));
    }
  }
  const int best = *std::max_element(scores.begin(), scores.end());
  for (std::size_t c = 0; c < configs.size(); ++c) {
    result[c] = scores[c] == best;
  }
  return result;
}

// The number of axes on which the config plays its role; -1 if it is against
// one.
int RoleMasks::score(const Part& part, const SpaceConfig& config,
                     const AxisRoles& roles) {
  int plays = 0;
  for (std::size_t axis = 0; axis < roles.size(); ++axis) {
    const Fit found = fit(part, split_of(config, axis), roles[axis]);
    if (found == Fit::kAgainst) return -1;
    plays += found == Fit::kPlays;
  }
  return plays;
}

RoleMasks::Fit RoleMasks::fit(const Part& part, int split, AxisRole role) {
  const bool parameter = part.kind == Kind::kParameter;
  if (part.kind == Kind::kConstant && role.kind != RoleKind::kEverything) {
    return split < 0 ? Fit::kPlays : Fit::kAgainst;
  }
  switch (role.kind) {
    case RoleKind::kSplit:
      return fit_name(part, split, role.name);
    case RoleKind::kData:
      if (parameter || part.kind == Kind::kParameterRelay) {
        return split < 0 ? Fit::kPlays : Fit::kAgainst;
      }
      return fit_name(part, split, NamedDims::kBatch);
    case RoleKind::kShard:
      if (parameter) return split < 0 ? Fit::kIdle : Fit::kPlays;
      if (part.kind == Kind::kParameterRelay) return Fit::kPlays;
      return fit_name(part, split, NamedDims::kBatch);
    case RoleKind::kTensor:
      return fit_tensor(part, split);
    case RoleKind::kEverything:
      break;
  }
  return split < 0 ? Fit::kIdle : Fit::kPlays;
}

RoleMasks::Fit RoleMasks::fit_name(const Part& part, int split, int name) {
  if (split >= 0) {
    const bool named = name >= 0 && part.dims[split].name == name;
    return named ? Fit::kPlays : Fit::kAgainst;
  }
  const bool wanted =
      name >= 0 && std::any_of(part.dims.begin(), part.dims.end(),
                               [&](const auto& d) { return d.name == name; });
  return wanted ? Fit::kIdle : Fit::kPlays;
}

RoleMasks::Fit RoleMasks::fit_tensor(const Part& part, int split) {
  if (part.kind == Kind::kParameter || part.kind == Kind::kParameterRelay) {
    return Fit::kPlays;
  }
  const bool has_weight =
      std::count(part.in_weight.begin(), part.in_weight.end(), true) > 0;
  if (split < 0) return has_weight ? Fit::kIdle : Fit::kPlays;
  if (has_weight) return part.in_weight[split] ? Fit::kPlays : Fit::kAgainst;
  const NamedDims::Dim& dim = part.dims[split];
  const bool whole = part.kind == Kind::kRelay && dim.kept_whole;
  const bool ours = dim.of_weight && dim.name != NamedDims::kBatch && !whole;
  return ours ? Fit::kPlays : Fit::kAgainst;
}

}  // namespace tensoropt
