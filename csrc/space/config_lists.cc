#include "space/config_lists.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "space/pending_sums.h"

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

const ConfigList* ConfigLists::intern(const ConfigKey& key,
                                      const std::function<ConfigList()>& make) {
  auto& entry = lists_[key];
  if (!entry) entry = std::make_unique<ConfigList>(make());
  return entry.get();
}

const ConfigList* ConfigLists::of_node(const Node& node) {
  return intern(key_of_node(node), [&] {
    return node.kind == NodeKind::kOp       ? op_configs(node)
           : node.kind == NodeKind::kOutput ? output_configs(node)
                                            : source_configs(node);
  });
}

const ConfigList* ConfigLists::of_relay(const Value& value) {
  return intern(relay_key(value), [&] { return relay_configs(value); });
}

ConfigKey ConfigLists::key_of_node(const Node& node) const {
  if (node.kind == NodeKind::kOp) return op_key(node);
  if (node.kind == NodeKind::kOutput) return OutputKey{};
  return source_key(node);
}

OpKey ConfigLists::op_key(const Node& node) const {
  OpKey key{.rule = model_.rule(node.id),
            .operands = {},
            .outputs = {},
            .copies_parameter = model_.copies_parameter(node),
            .may_run_again = model_.recomputation().may_run_again(node.id),
            .measured = {}};
  for (const ValueId id : node.operands) {
    key.operands.push_back(tensor_key(graph().value(id)));
  }
  for (const ValueId id : node.outputs) {
    key.outputs.push_back(tensor_key(graph().value(id)));
  }
  if (model_.machine().operators != nullptr) {
    const OpConfig whole(mesh().num_axes(), AxisUse::none());
    key.measured = model_.local_call_of(node.id, whole).key;
  }
  return key;
}

SourceKey ConfigLists::source_key(const Node& node) const {
  const Value& value = graph().output(node, 0);
  const auto pinned = options().storage.find(node.name);
  return {.kind = node.kind,
          .tensor = tensor_key(value),
          .is_stored = model_.is_stored(node),
          .shared_dim = shared_dim(graph(), node, options()),
          .pinned = pinned == options().storage.end()
                        ? std::nullopt
                        : std::optional(pinned->second),
          .uneven_dims = model_.uneven_dims_of(value)};
}

RelayKey ConfigLists::relay_key(const Value& value) const {
  return {.tensor = tensor_key(value),
          .splittable_shape = model_.idle_dims().splittable_shape(value),
          .may_be_kept = model_.may_be_kept(value.id),
          .may_leave = model_.recomputation().may_leave(value.id),
          .shares_pending_gradients =
              shares_pending_gradients(graph(), model_.rules(), value),
          .uneven_dims = model_.uneven_dims_of(value)};
}

// What `list(limits)` gives with as many runs as max_configs allows, at least
// two: those of data and tensor parallelism together. `configs` learns whether
// that left something out.
template <typename List>
auto ConfigLists::within_budget(ConfigList& configs, const List& list) {
  constexpr int kFewestRuns = 2;
  const int axes = mesh().num_axes();
  ConfigLimits limits{options().config_space, std::min(kFewestRuns, axes)};
  auto result = list(limits);
  while (limits.max_runs < axes) {
    ++limits.max_runs;
    auto more = list(limits);
    if (more.size() > options().max_configs) {
      complete_ = false;
      configs.max_runs = limits.max_runs - 1;
      break;
    }
    result = std::move(more);
  }
  return result;
}

PassTimes ConfigLists::times_of(const Node& node, const OpConfig& uses) const {
  // Operators were measured one by one.
  const bool fused = options().compiled && model_.rule(node.id).fuses;
  if (model_.machine().operators != nullptr && !fused) {
    return model_.machine()
        .operators->estimate(model_.local_call_of(node.id, uses))
        .times;
  }
  return roofline(op_work(graph(), node, model_.rule(node.id), uses, mesh()),
                  model_.machine().device);
}

ConfigList ConfigLists::op_configs(const Node& node) {
  const Rule& rule = model_.rule(node.id);
  // A copy follows its parameter, which has all orders of alike axes.
  const auto with_orders = [&](ConfigLimits limits) {
    if (model_.copies_parameter(node)) limits.space = ConfigSpace::kFull;
    return limits;
  };
  ConfigList list;
  const std::vector<OpConfig> configs =
      within_budget(list, [&](const ConfigLimits& limits) {
        return enumerate_configs(rule, mesh(), with_orders(limits));
      });
  for (const OpConfig& uses : configs) {
    const PassTimes times = times_of(node, uses);
    const std::string splits = tensoropt::to_string(rule, uses);
    const auto add = [&](Saved saved) {
      OpInterface interface = interface_of(rule, uses);
      list.costs.push_back(
          op_cost(graph(), node, rule, uses, model_.machine(), times, saved));
      list.configs.push_back(
          {.label = str_format("{}{}", splits, op_suffix(saved)),
           .splits = splits,
           .uses = uses,
           .saved = saved,
           .inputs = std::move(interface.operands),
           .outputs = std::move(interface.outputs)});
    };
    add(Saved::kNothing);
    if (model_.recomputation().may_run_again(node.id)) add(Saved::kRemade);
  }
  return list;
}

std::vector<Layout> ConfigLists::source_layouts(const Node& node,
                                                ConfigList& list) {
  const Shape shape = graph().output(node, 0).meta.counts();
  Layout layout = Layout::replicated(mesh().num_axes());
  const bool own =
      node.kind == NodeKind::kParameter || node.kind == NodeKind::kConstant;
  if (const auto pinned = options().storage.find(node.name);
      own && pinned != options().storage.end()) {
    check_pinned(node, shape, pinned->second, mesh());
    TO_CHECK(pinned->second == layout || model_.is_stored(node),
             "buffer '{}' is stored in parts, as '{}', but this call of the "
             "model changes it, which each device does by itself; plan with an "
             "example that changes it (in training mode, say)",
             node.name, pinned->second.to_string());
    return {pinned->second};
  }
  if (model_.is_stored(node)) {
    // All orders of alike axes: canonical configs of operators ask for the
    // parameter in others too, where an outer axis splits the batch.
    return within_budget(list, [&](const ConfigLimits& limits) {
      return enumerate_layouts(shape, mesh(),
                               {ConfigSpace::kFull, limits.max_runs},
                               model_.uneven_dims_of(graph().output(node, 0)));
    });
  }
  if (const int dim = shared_dim(graph(), node, options()); dim >= 0) {
    layout = share_of_rows(dim, mesh(), options());
    const int shares = mesh().size_of(layout.axes_sharding(dim));
    TO_CHECK(divides(shape, layout, mesh()),
             "input '{}' of shape [{}]: dim {} (the global batch) of size {} "
             "is not divisible by {} devices; use a global batch that is a "
             "multiple of {}, name another dim that has its rows, inputs="
             "{{'{}': 1}}, or inputs='replicated', for this input or all",
             node.name, str_join(shape, ", "), dim, shape[dim], shares, shares,
             node.name);
  }
  return {layout};
}

ConfigList ConfigLists::source_configs(const Node& node) {
  const Value& value = graph().output(node, 0);
  const bool is_parameter = node.kind == NodeKind::kParameter;
  const bool trained = is_parameter && value.requires_grad;
  ConfigList list;
  for (const Layout& layout : source_layouts(node, list)) {
    list.costs.push_back(parameter_cost(value.meta, trained, layout, mesh(),
                                        model_.machine().device,
                                        options().training));
    if (trained && model_.machine().overheads.update_s_per_byte > 0) {
      list.costs.back().step_s =
          model_.machine().overheads.parameter_s +
          model_.machine().overheads.update_s_per_byte *
              update_traffic_bytes(value.meta, layout, mesh(),
                                   options().training);
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
ConfigList ConfigLists::output_configs(const Node& node) const {
  SpaceConfig config;
  config.label = config.splits = "output";
  for (const ValueId id : node.operands) {
    const Layout whole = Layout::replicated(mesh().num_axes());
    Port port{whole, whole};
    const Value& value = graph().value(id);
    if (options().sharded_inputs) {
      const int dim = model_.rows_dim_of(id);
      const Layout shares =
          dim < 0 ? whole : share_of_rows(dim, mesh(), options());
      const int index = static_cast<int>(config.inputs.size());
      if (dim >= 0 && divides(value.meta.counts(), shares, mesh())) {
        port = {shares, shares};
      } else if (value.requires_grad && index != options().loss_output) {
        port.gradient = on_all_axes(Placement::partial(), mesh());
      }
    }
    config.inputs.push_back(port);
  }
  return {{std::move(config)}, {CostParts{}}};
}

// Among alike neighbouring axes of `whole`, only the last ones are pending.
bool ConfigLists::is_canonical(AxisSet pending, AxisSet whole) const {
  if (options().config_space == ConfigSpace::kFull) return true;
  for (int axis = 0; axis + 1 < mesh().num_axes(); ++axis) {
    const bool both = (whole >> axis & 3) == 3;
    if (both && mesh().alike(axis, axis + 1) && (pending >> axis & 3) == 1) {
      return false;
    }
  }
  return true;
}

// Every layout of the value without pending sums; on each axis that leaves the
// value whole the gradient may stay Partial, if that can pay (among alike axes
// the last ones, unless the space is full).
std::vector<Port> ConfigLists::relay_ports(const Value& value,
                                           const ConfigLimits& limits) const {
  const bool may_wait =
      value.requires_grad &&
      shares_pending_gradients(graph(), model_.rules(), value);
  std::vector<Port> ports;
  for (const Layout& layout :
       enumerate_layouts(model_.idle_dims().splittable_shape(value), mesh(),
                         limits, model_.uneven_dims_of(value))) {
    const AxisSet whole = may_wait ? layout.replicate_axes() : 0;
    for (AxisSet pending = 0; pending <= whole; ++pending) {
      if ((pending & ~whole) != 0 || !is_canonical(pending, whole)) continue;
      Layout gradient = layout;
      for (int axis = 0; axis < mesh().num_axes(); ++axis) {
        if (pending >> axis & 1) gradient.set(axis, Placement::partial());
      }
      if (num_runs({layout, gradient}) <= limits.max_runs) {
        ports.push_back({layout, gradient});
      }
    }
  }
  return ports;
}

ConfigList ConfigLists::relay_configs(const Value& value) {
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
    if (model_.may_be_kept(value.id)) add(Saved::kKept);
    if (model_.recomputation().may_leave(value.id)) add(Saved::kRemade);
  }
  return list;
}

}  // namespace tensoropt
