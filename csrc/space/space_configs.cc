// The configs of every kind of space node, shared between nodes with equal
// rules.

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "space/pending_sums.h"
#include "space/space.h"

namespace tensoropt {

namespace {

int num_runs(const Port& port) {
  int runs = port.value.num_axes() > 0 ? 1 : 0;
  for (int axis = 1; axis < port.value.num_axes(); ++axis) {
    const bool same = port.value[axis] == port.value[axis - 1] &&
                      port.gradient[axis] == port.gradient[axis - 1];
    runs += same ? 0 : 1;
  }
  return runs;
}

Layout on_all_axes(Placement placement, const Mesh& mesh) {
  Layout layout = Layout::replicated(mesh.num_axes());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    layout.set(axis, placement);
  }
  return layout;
}

bool has_empty_part(const Shape& shape, const Layout& layout,
                    const Mesh& mesh) {
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    const AxisSet axes = layout.axes_sharding(dim);
    if (axes != 0 && tensoropt::has_empty_part(shape[dim], axes, mesh)) {
      return true;
    }
  }
  return false;
}

void check_pinned(const Node& node, const Shape& shape, const Layout& layout,
                  const Mesh& mesh) {
  TO_CHECK(layout.num_axes() == mesh.num_axes() && !layout.has_partial() &&
               applies_to(shape, layout) &&
               !has_empty_part(shape, layout, mesh),
           "'{}' of shape [{}] cannot be stored as '{}' on {} "
           "devices; give R or S followed by a dim, for each of {} mesh axes, "
           "so that no part is empty",
           node.name, str_join(shape, ", "), layout.to_string(),
           mesh.num_devices(), mesh.num_axes());
}

TensorKey tensor_key(const Value& value) {
  return {value.meta, value.requires_grad};
}

}  // namespace

const ConfigList* StrategySpace::intern(
    const ConfigKey& key, const std::function<ConfigList()>& make) {
  auto& entry = lists_[key];
  if (!entry) entry = std::make_unique<ConfigList>(make());
  return entry.get();
}

const ConfigList* StrategySpace::configs_of_node(const Node& node) {
  return intern(key_of_node(node), [&] {
    return node.kind == NodeKind::kOp       ? op_configs(node)
           : node.kind == NodeKind::kOutput ? output_configs(node)
                                            : source_configs(node);
  });
}

ConfigKey StrategySpace::key_of_node(const Node& node) const {
  if (node.kind == NodeKind::kOp) return op_key(node);
  if (node.kind == NodeKind::kOutput) return OutputKey{};
  return source_key(node);
}

OpKey StrategySpace::op_key(const Node& node) const {
  OpKey key{.rule = rules_[node.id],
            .operands = {},
            .outputs = {},
            .copies_parameter = copies_parameter(node),
            .may_run_again = recomputation_->may_run_again(node.id),
            .measured = {}};
  for (const ValueId id : node.operands) {
    key.operands.push_back(tensor_key(graph_.value(id)));
  }
  for (const ValueId id : node.outputs) {
    key.outputs.push_back(tensor_key(graph_.value(id)));
  }
  if (machine_.operators != nullptr) {
    const OpConfig whole(machine_.mesh.num_axes(), AxisUse::none());
    key.measured = local_call_of(node.id, whole).key;
  }
  return key;
}

SourceKey StrategySpace::source_key(const Node& node) const {
  const Value& value = graph_.output(node, 0);
  const auto pinned = options_.storage.find(node.name);
  return {.kind = node.kind,
          .tensor = tensor_key(value),
          .is_stored = is_stored(node),
          .shared_dim = shared_dim(graph_, node, options_),
          .pinned = pinned == options_.storage.end()
                        ? std::nullopt
                        : std::optional(pinned->second),
          .uneven_dims = uneven_dims_of(value)};
}

RelayKey StrategySpace::relay_key(const Value& value) const {
  return {.tensor = tensor_key(value),
          .splittable_shape = idle_dims_->splittable_shape(value),
          .may_be_kept = may_be_kept(value.id),
          .may_leave = recomputation_->may_leave(value.id),
          .shares_pending_gradients =
              shares_pending_gradients(graph_, rules_, value),
          .uneven_dims = uneven_dims_of(value)};
}

// What `list(limits)` gives with as many runs as max_configs allows, at least
// two: those of data and tensor parallelism together. `configs` learns whether
// that left something out.
template <typename List>
auto StrategySpace::within_budget(ConfigList& configs, const List& list) {
  constexpr int kFewestRuns = 2;
  const int axes = machine_.mesh.num_axes();
  ConfigLimits limits{options_.config_space, std::min(kFewestRuns, axes)};
  auto result = list(limits);
  while (limits.max_runs < axes) {
    ++limits.max_runs;
    auto more = list(limits);
    if (more.size() > options_.max_configs) {
      complete_ = false;
      configs.max_runs = limits.max_runs - 1;
      break;
    }
    result = std::move(more);
  }
  return result;
}

PassTimes StrategySpace::times_of(const Node& node,
                                  const OpConfig& uses) const {
  if (machine_.operators != nullptr) {
    return machine_.operators->estimate(local_call_of(node.id, uses)).times;
  }
  return roofline(op_work(graph_, node, rules_[node.id], uses, machine_.mesh),
                  machine_.device);
}

OpCost StrategySpace::cost_of(const Node& node, const OpConfig& uses,
                              const PassTimes& times, Saved saved) const {
  OpCost cost =
      op_cost(graph_, node, rules_[node.id], uses, machine_, times, saved);
  cost.time_s *= options_.micro_batches;
  cost.network_s *= options_.micro_batches;
  return cost;
}

ConfigList StrategySpace::op_configs(const Node& node) {
  const Rule& rule = rules_[node.id];
  // A copy follows its parameter, which has all orders of alike axes.
  const auto with_orders = [&](ConfigLimits limits) {
    if (copies_parameter(node)) limits.space = ConfigSpace::kFull;
    return limits;
  };
  ConfigList list;
  const std::vector<OpConfig> configs =
      within_budget(list, [&](const ConfigLimits& limits) {
        return enumerate_configs(rule, machine_.mesh, with_orders(limits));
      });
  for (const OpConfig& uses : configs) {
    const PassTimes times = times_of(node, uses);
    const std::string splits = tensoropt::to_string(rule, uses);
    const auto add = [&](Saved saved) {
      OpInterface interface = interface_of(rule, uses);
      list.costs.push_back(cost_of(node, uses, times, saved));
      list.configs.push_back(
          {.label = str_format("{}{}", splits, op_suffix(saved)),
           .splits = splits,
           .uses = uses,
           .saved = saved,
           .inputs = std::move(interface.operands),
           .outputs = std::move(interface.outputs)});
    };
    add(Saved::kNothing);
    if (recomputation_->may_run_again(node.id)) add(Saved::kRemade);
  }
  return list;
}

std::vector<Layout> StrategySpace::source_layouts(const Node& node,
                                                  ConfigList& list) {
  const Shape shape = graph_.output(node, 0).meta.counts();
  const Mesh& mesh = machine_.mesh;
  Layout layout = Layout::replicated(mesh.num_axes());
  const bool own =
      node.kind == NodeKind::kParameter || node.kind == NodeKind::kConstant;
  if (const auto pinned = options_.storage.find(node.name);
      own && pinned != options_.storage.end()) {
    check_pinned(node, shape, pinned->second, mesh);
    TO_CHECK(pinned->second == layout || is_stored(node),
             "buffer '{}' is stored in parts, as '{}', but this call of the "
             "model changes it, which each device does by itself; plan with an "
             "example that changes it (in training mode, say)",
             node.name, pinned->second.to_string());
    return {pinned->second};
  }
  if (is_stored(node)) {
    // All orders of alike axes: canonical configs of operators ask for the
    // parameter in others too, where an outer axis splits the batch.
    return within_budget(list, [&](const ConfigLimits& limits) {
      return enumerate_layouts(shape, mesh,
                               {ConfigSpace::kFull, limits.max_runs},
                               uneven_dims_of(graph_.output(node, 0)));
    });
  }
  if (const int dim = shared_dim(graph_, node, options_); dim >= 0) {
    layout = on_all_axes(Placement::shard(dim), mesh);
    TO_CHECK(divides(shape, layout, mesh),
             "input '{}' of shape [{}]: dim {} (the global batch) of size {} "
             "is not divisible by {} devices; use a global batch that is a "
             "multiple of {}, name another dim that has its rows, inputs="
             "{{'{}': 1}}, or inputs='replicated', for this input or all",
             node.name, str_join(shape, ", "), dim, shape[dim],
             mesh.num_devices(), mesh.num_devices(), node.name);
  }
  return {layout};
}

ConfigList StrategySpace::source_configs(const Node& node) {
  const Value& value = graph_.output(node, 0);
  const Mesh& mesh = machine_.mesh;
  const bool is_parameter = node.kind == NodeKind::kParameter;
  const bool trained = is_parameter && value.requires_grad;
  ConfigList list;
  for (const Layout& layout : source_layouts(node, list)) {
    list.costs.push_back(parameter_cost(value.meta, trained, layout, mesh,
                                        machine_.device, options_.training));
    if (trained && machine_.overheads.update_s_per_byte > 0) {
      list.costs.back().time_s =
          machine_.overheads.parameter_s +
          machine_.overheads.update_s_per_byte *
              update_traffic_bytes(value.meta, layout, mesh, options_.training);
    }
    list.configs.push_back({.label = layout.to_string(),
                            .splits = layout.to_string(),
                            .outputs = {{layout, layout}}});
  }
  return list;
}

// With shared inputs an output with rows leaves as each rank's share of them,
// and others whole. Of these each rank gives a gradient of its own, which are
// added up, but of the loss.
ConfigList StrategySpace::output_configs(const Node& node) const {
  const Mesh& mesh = machine_.mesh;
  SpaceConfig config;
  config.label = config.splits = "output";
  for (const ValueId id : node.operands) {
    const Layout whole = Layout::replicated(mesh.num_axes());
    Port port{whole, whole};
    const Value& value = graph_.value(id);
    if (options_.sharded_inputs) {
      const int dim = rows_[id].dim();
      const Layout shares =
          dim < 0 ? whole : on_all_axes(Placement::shard(dim), mesh);
      const int index = static_cast<int>(config.inputs.size());
      if (dim >= 0 && divides(value.meta.counts(), shares, mesh)) {
        port = {shares, shares};
      } else if (value.requires_grad && index != options_.loss_output) {
        port.gradient = on_all_axes(Placement::partial(), mesh);
      }
    }
    config.inputs.push_back(port);
  }
  return {{std::move(config)}, {OpCost{}}};
}

// Among alike neighbouring axes of `whole`, only the last ones are pending.
bool StrategySpace::is_canonical(AxisSet pending, AxisSet whole) const {
  if (options_.config_space == ConfigSpace::kFull) return true;
  for (int axis = 0; axis + 1 < machine_.mesh.num_axes(); ++axis) {
    const bool both = (whole >> axis & 3) == 3;
    if (both && machine_.mesh.alike(axis, axis + 1) &&
        (pending >> axis & 3) == 1) {
      return false;
    }
  }
  return true;
}

// Every layout of the value without pending sums; on each axis that leaves the
// value whole the gradient may stay Partial, if that can pay (among alike axes
// the last ones, unless the space is full).
std::vector<Port> StrategySpace::relay_ports(const Value& value,
                                             const ConfigLimits& limits) const {
  const Mesh& mesh = machine_.mesh;
  const bool may_wait =
      value.requires_grad && shares_pending_gradients(graph_, rules_, value);
  std::vector<Port> ports;
  for (const Layout& layout :
       enumerate_layouts(idle_dims_->splittable_shape(value), mesh, limits,
                         uneven_dims_of(value))) {
    const AxisSet whole = may_wait ? layout.replicate_axes() : 0;
    for (AxisSet pending = 0; pending <= whole; ++pending) {
      if ((pending & ~whole) != 0 || !is_canonical(pending, whole)) continue;
      Layout gradient = layout;
      for (int axis = 0; axis < mesh.num_axes(); ++axis) {
        if (pending >> axis & 1) gradient.set(axis, Placement::partial());
      }
      if (num_runs({layout, gradient}) <= limits.max_runs) {
        ports.push_back({layout, gradient});
      }
    }
  }
  return ports;
}

ConfigList StrategySpace::relay_configs(const Value& value) {
  ConfigList list;
  for (const Port& port : within_budget(list, [&](const ConfigLimits& limits) {
         return relay_ports(value, limits);
       })) {
    const std::string splits =
        str_format("{}/{}", port.value.to_string(), port.gradient.to_string());
    const auto add = [&](Saved saved) {
      list.configs.push_back(
          {.label = str_format("{}{}", splits, relay_suffix(saved)),
           .splits = splits,
           .saved = saved,
           .inputs = {port},
           .outputs = {port}});
      list.costs.push_back({});
    };
    add(Saved::kNothing);
    if (may_be_kept(value.id)) add(Saved::kKept);
    if (recomputation_->may_leave(value.id)) add(Saved::kRemade);
  }
  return list;
}

}  // namespace tensoropt
