#include "search/space.h"

#include <algorithm>
#include <set>

#include "common/check.h"
#include "common/parallel.h"
#include "search/pending_sums.h"

namespace tensoropt {

namespace {

// Values that no input or parameter reaches are the same on every device.
std::vector<bool> find_constants(const Graph& graph) {
  std::vector<bool> constant(graph.values().size(), false);
  for (const Node& node : graph.nodes()) {
    const bool source = node.kind == NodeKind::kConstant;
    const bool derived =
        node.kind == NodeKind::kOp &&
        std::all_of(node.operands.begin(), node.operands.end(),
                    [&](ValueId id) { return constant[id]; });
    for (const ValueId id : node.outputs) constant[id] = source || derived;
  }
  return constant;
}

void make_unsplittable(Rule& rule) {
  for (Factor& factor : rule.factors) factor.size = 1;
  rule.linear_sets.clear();
}

}  // namespace

StrategySpace::StrategySpace(const Graph& graph, const Registry& registry,
                             const Machine& machine,
                             const SpaceOptions& options)
    : graph_(graph), machine_(machine), options_(options) {
  find_rules(registry);
  find_saved();
  add_nodes();
  add_edges();
}

void StrategySpace::find_rules(const Registry& registry) {
  constant_ = find_constants(graph_);
  std::set<std::string> unknown;
  rules_.resize(graph_.nodes().size());
  for (const Node& node : graph_.nodes()) {
    if (node.kind != NodeKind::kOp) continue;
    rules_[node.id] = rule_of(registry, graph_, node);
    if (!node.outputs.empty() && constant_[node.outputs[0]]) {
      make_unsplittable(rules_[node.id]);
    } else if (!registry.find(node.target) &&
               unknown.insert(node.target).second) {
      unknown_targets_.push_back(node.target);
    }
  }
  idle_dims_.emplace(graph_, rules_, options_.sharded_inputs);
  idle_dims_->remove_from(rules_);
  remove_idle_linear_sets(graph_, rules_);
}

// Whether the operator takes the layout of operand 0 as it comes: moving a
// reshard from before it to after it changes no cost, since it neither computes
// much nor keeps or resizes anything, and its other operands are constants.
bool StrategySpace::follows(const Node& node) const {
  const Rule& rule = rules_[node.id];
  if (rule.view) return true;
  if (rule.random || !rule.extra_saved.empty() || rule.outputs.size() != 1 ||
      rule.outputs[0].saved || node.operands.empty() ||
      rule.operands[0].saved) {
    return false;
  }
  for (std::size_t i = 1; i < node.operands.size(); ++i) {
    if (!constant_[node.operands[i]]) return false;
  }
  const TensorMeta& in = graph_.operand(node, 0).meta;
  const TensorMeta& out = graph_.output(node, 0).meta;
  return in.shape == out.shape && in.dtype == out.dtype &&
         rule.forward_flops <= static_cast<double>(out.num_elements());
}

// Who keeps what. `needed_[v]`: autograd keeps v's storage as some consumer
// got it, through views if need be. `saved_by_producer_[v]`: v is kept where it
// is made; views of a kept value are kept, unless a relay decides for it.
void StrategySpace::find_saved() {
  const std::size_t count = graph_.values().size();
  needed_.assign(count, false);
  saved_by_producer_.assign(count, false);
  for (auto node = graph_.nodes().rbegin(); node != graph_.nodes().rend();
       ++node) {
    if (node->kind != NodeKind::kOp) continue;
    const Rule& rule = rules_[node->id];
    const bool backward = std::any_of(
        node->outputs.begin(), node->outputs.end(),
        [&](ValueId id) { return graph_.value(id).requires_grad; });
    for (std::size_t i = 0; i < node->operands.size(); ++i) {
      const bool through = rule.alias && i == 0 && needed_[node->outputs[0]];
      if ((rule.operands[i].saved && backward) || through) {
        needed_[node->operands[i]] = true;
      }
    }
  }
  for (const Node& node : graph_.nodes()) {
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      if (node.kind != NodeKind::kOp) {
        saved_by_producer_[id] = true;
      } else if (rules_[node.id].alias) {
        const ValueId base = node.operands[0];
        const bool relayed = graph_.value(base).uses.size() > 1;
        saved_by_producer_[id] = relayed || saved_by_producer_[base];
      } else {
        saved_by_producer_[id] = rules_[node.id].outputs[i].saved;
      }
    }
  }
}

void StrategySpace::add_nodes() {
  node_of_.assign(graph_.nodes().size(), -1);
  relay_of_.assign(graph_.values().size(), -1);
  for (const Node& node : graph_.nodes()) {
    const auto kind = node.kind == NodeKind::kOp       ? SpaceNodeKind::kOp
                      : node.kind == NodeKind::kOutput ? SpaceNodeKind::kOutput
                                                       : SpaceNodeKind::kSource;
    node_of_[node.id] = static_cast<int>(nodes_.size());
    nodes_.push_back({kind, node.id, -1, node.name, configs_of_node(node)});
    for (const ValueId id : node.outputs) {
      const Value& value = graph_.value(id);
      const bool whole = constant_[id] || node.kind == NodeKind::kInput;
      if (value.uses.size() < 2 || whole) continue;
      const std::string name = fmt::format("{}:{}", node.name,
                                           value.output_index);
      const std::string signature = fmt::format(
          "relay {} {} {} {} {} {}", fmt::join(value.meta.shape, "x"),
          fmt::join(idle_dims_->splittable_shape(value), "x"),
          to_string(value.meta.dtype), value.requires_grad,
          static_cast<bool>(needed_[id]),
          shares_pending_gradients(graph_, rules_, value));
      relay_of_[id] = static_cast<int>(nodes_.size());
      nodes_.push_back({SpaceNodeKind::kRelay, -1, id, name,
                        intern(signature, relay_configs(value))});
    }
  }
}

void StrategySpace::add_edges() {
  for (const Value& value : graph_.values()) {
    const TensorMeta& meta = value.meta;
    resharders_.try_emplace({meta.shape, item_size(meta.dtype)},
                            machine_.mesh, machine_.collectives,
                            machine_.device, meta.shape,
                            item_size(meta.dtype));
    int source = node_of_[value.producer];
    int port = value.output_index;
    if (const int relay = relay_of_[value.id]; relay >= 0) {
      edges_.push_back({source, relay, port, 0, value.id, false});
      source = relay;
      port = 0;
    }
    for (const Use& use : value.uses) {
      const Node& node = graph_.node(use.node);
      const bool follower = node.kind == NodeKind::kOp && use.operand == 0 &&
                            follows(node);
      edges_.push_back({source, node_of_[use.node], port, use.operand,
                        value.id, follower});
    }
  }
}

const TensorResharder& StrategySpace::resharder(const TensorMeta& meta) const {
  return resharders_.at({meta.shape, item_size(meta.dtype)});
}

// --- Configs ---------------------------------------------------------------

const ConfigList* StrategySpace::intern(const std::string& signature,
                                        ConfigList list) {
  auto& entry = lists_[signature];
  if (!entry) entry = std::make_unique<ConfigList>(std::move(list));
  return entry.get();
}

const ConfigList* StrategySpace::configs_of_node(const Node& node) {
  std::string signature;
  if (node.kind == NodeKind::kOp) {
    signature = op_signature(node);
  } else if (node.kind == NodeKind::kOutput) {
    signature = "output";
  } else {
    const Value& value = graph_.output(node, 0);
    signature = fmt::format("source {} {} {} {}", static_cast<int>(node.kind),
                            fmt::join(value.meta.shape, "x"),
                            to_string(value.meta.dtype), value.requires_grad);
  }
  if (const auto found = lists_.find(signature); found != lists_.end()) {
    return found->second.get();
  }
  return intern(signature, node.kind == NodeKind::kOp ? op_configs(node)
                           : node.kind == NodeKind::kOutput
                               ? output_configs(node)
                               : source_configs(node));
}

// Everything that configs and costs of an operator depend on.
std::string StrategySpace::op_signature(const Node& node) const {
  const Rule& rule = rules_[node.id];
  std::string text = fmt::format("op {} {} {}", rule.forward_flops,
                                 rule.backward_flops, rule.view);
  for (const Factor& factor : rule.factors) {
    text += fmt::format(";{}:{}:{}", factor.name, factor.size,
                        static_cast<int>(factor.kind));
  }
  const auto add = [&](const TensorRule& tensor, const Value& value) {
    text += fmt::format("|{},{},{},{},{},{}", fmt::join(tensor.dims, "."),
                        tensor.saved, tensor.additive,
                        fmt::join(value.meta.shape, "x"),
                        to_string(value.meta.dtype), value.requires_grad);
  };
  for (std::size_t i = 0; i < rule.operands.size(); ++i) {
    add(rule.operands[i], graph_.operand(node, static_cast<int>(i)));
  }
  text += "->";
  for (std::size_t i = 0; i < rule.outputs.size(); ++i) {
    add(rule.outputs[i], graph_.output(node, static_cast<int>(i)));
  }
  for (const auto& set : rule.linear_sets) {
    text += fmt::format("+{}", fmt::join(set, "."));
  }
  for (const ExtraSaved& extra : rule.extra_saved) {
    text += fmt::format("e{}:{}", extra.bytes, fmt::join(extra.factors, "."));
  }
  return text;
}

ConfigList StrategySpace::op_configs(const Node& node) const {
  const Rule& rule = rules_[node.id];
  ConfigList list;
  for (const OpConfig& uses :
       enumerate_configs(rule, machine_.mesh, options_.config_space)) {
    OpInterface interface = interface_of(rule, uses);
    list.costs.push_back(op_cost(graph_, node, rule, uses, machine_.mesh,
                                 machine_.device));
    list.configs.push_back({tensoropt::to_string(rule, uses), uses, false,
                            std::move(interface.operands),
                            std::move(interface.outputs)});
  }
  return list;
}

ConfigList StrategySpace::source_configs(const Node& node) const {
  const Value& value = graph_.output(node, 0);
  const Mesh& mesh = machine_.mesh;
  std::vector<Layout> layouts{Layout::replicated(mesh.num_axes())};
  if (node.kind == NodeKind::kParameter) {
    layouts = enumerate_layouts(value.meta.shape, mesh, options_.config_space);
  } else if (node.kind == NodeKind::kInput && options_.sharded_inputs &&
             !value.meta.shape.empty()) {
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      layouts[0].set(axis, Placement::shard(0));
    }
    TO_CHECK(divides(value.meta.shape, layouts[0], mesh),
             "input '{}' of shape [{}]: dim 0 (the global batch) of size {} is "
             "not divisible by {} devices; use a global batch that is a "
             "multiple of {}, or inputs='replicated'",
             node.name, fmt::join(value.meta.shape, ", "), value.meta.shape[0],
             mesh.num_devices(), mesh.num_devices());
  }
  ConfigList list;
  for (const Layout& layout : layouts) {
    list.costs.push_back(parameter_cost(value.meta, value.requires_grad, layout,
                                        mesh, machine_.device,
                                        options_.training));
    list.configs.push_back(
        {layout.to_string(), {}, false, {}, {{layout, layout}}});
  }
  return list;
}

// Scalars leave replicated. Other outputs leave as inputs come: each rank's
// share of dim 0, or whole.
ConfigList StrategySpace::output_configs(const Node& node) const {
  const Mesh& mesh = machine_.mesh;
  SpaceConfig config;
  config.label = "output";
  for (const ValueId id : node.operands) {
    Layout layout = Layout::replicated(mesh.num_axes());
    Layout sharded = layout;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      sharded.set(axis, Placement::shard(0));
    }
    const Shape& shape = graph_.value(id).meta.shape;
    if (options_.sharded_inputs && !shape.empty() &&
        divides(shape, sharded, mesh)) {
      layout = sharded;
    }
    config.inputs.push_back({layout, layout});
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

// Every layout of the value without pending sums, kept or not; on each axis
// that leaves the value whole the gradient may stay Partial, if that can pay
// (among alike axes the last ones, unless the space is full).
ConfigList StrategySpace::relay_configs(const Value& value) const {
  const Mesh& mesh = machine_.mesh;
  ConfigList list;
  const bool needed = needed_[value.id];
  const bool may_wait = value.requires_grad &&
                        shares_pending_gradients(graph_, rules_, value);
  for (const Layout& layout :
       enumerate_layouts(idle_dims_->splittable_shape(value), mesh,
                         options_.config_space)) {
    const AxisSet whole = may_wait ? layout.replicate_axes() : 0;
    for (AxisSet pending = 0; pending <= whole; ++pending) {
      if ((pending & ~whole) != 0 || !is_canonical(pending, whole)) continue;
      Layout gradient = layout;
      for (int axis = 0; axis < mesh.num_axes(); ++axis) {
        if (pending >> axis & 1) gradient.set(axis, Placement::partial());
      }
      for (int kept = 0; kept <= (needed ? 1 : 0); ++kept) {
        const Port port{layout, gradient};
        list.configs.push_back({fmt::format("{}/{}{}", layout.to_string(),
                                            gradient.to_string(),
                                            kept ? " kept" : ""),
                                {}, kept == 1, {port}, {port}});
        list.costs.push_back({});
      }
    }
  }
  return list;
}

// --- Edges -----------------------------------------------------------------

// Everything that the table of an edge depends on, besides its ends' configs.
struct StrategySpace::EdgeKind {
  EdgeSpec spec;
  bool source_relay = false;
  bool target_relay = false;

  auto key(const StrategySpace& space, const SpaceEdge& edge) const {
    return std::tuple(space.nodes_[edge.source].configs, edge.source_port,
                      space.nodes_[edge.target].configs, edge.target_port,
                      edge.follows, &space.resharder(spec.meta), spec.backward,
                      spec.consumer_saves, spec.producer_keeps);
  }
};

StrategySpace::EdgeKind StrategySpace::kind_of(const SpaceEdge& edge) const {
  const Value& value = graph_.value(edge.value);
  const SpaceNode& source = nodes_[edge.source];
  const SpaceNode& target = nodes_[edge.target];
  EdgeKind kind{{value.meta, value.requires_grad, false,
                 static_cast<bool>(saved_by_producer_[edge.value]), true}};
  kind.source_relay = source.kind == SpaceNodeKind::kRelay;
  kind.target_relay = target.kind == SpaceNodeKind::kRelay;
  if (target.kind == SpaceNodeKind::kOp) {
    const Node& node = graph_.node(target.node);
    const Rule& rule = rules_[node.id];
    const bool through = rule.alias && edge.target_port == 0 &&
                         kind.source_relay && needed_[node.outputs[0]];
    const bool backward = graph_.output(node, 0).requires_grad;
    kind.spec.consumer_saves =
        (rule.operands[edge.target_port].saved && backward) || through;
  }
  if (kind.target_relay) kind.spec.may_replay = false;
  return kind;
}

EdgeOptions StrategySpace::options_of(const SpaceEdge& edge, int source_config,
                                      int target_config) const {
  const EdgeKind kind = kind_of(edge);
  EdgeSpec spec = kind.spec;
  const SpaceConfig& source =
      nodes_[edge.source].configs->configs[source_config];
  const SpaceConfig& target =
      nodes_[edge.target].configs->configs[target_config];
  const Port& from = source.outputs[edge.source_port];
  const Port& to = target.inputs[edge.target_port];
  if (kind.target_relay) spec.consumer_saves = target.kept;
  if (kind.source_relay) {
    spec.producer_keeps = spec.may_replay = source.kept;
    // The relay's own copy is the one to keep then.
    if (!source.kept && spec.consumer_saves && from.value == to.value) {
      return {};
    }
  }
  return edge_options(spec, machine_.mesh, resharder(spec.meta), from, to);
}

// A follower takes the layout it gets, if it can: the target configs allowed.
std::vector<bool> StrategySpace::followers(const SpaceEdge& edge,
                                           int source_config) const {
  const ConfigList& targets = *nodes_[edge.target].configs;
  const Layout& value = source_port(edge, source_config).value;
  std::vector<bool> same(targets.configs.size());
  for (std::size_t config = 0; config < same.size(); ++config) {
    same[config] =
        targets.configs[config].inputs[edge.target_port].value == value;
  }
  if (std::none_of(same.begin(), same.end(), [](bool b) { return b; })) {
    same.assign(same.size(), true);
  }
  return same;
}

std::shared_ptr<const EdgeTable> StrategySpace::edge_table(
    const SpaceEdge& edge) const {
  const int sources =
      static_cast<int>(nodes_[edge.source].configs->configs.size());
  const int targets =
      static_cast<int>(nodes_[edge.target].configs->configs.size());
  EdgeTable::Builder builder(sources, targets);
  for (int source = 0; source < sources; ++source) {
    const std::vector<bool> allowed =
        edge.follows ? followers(edge, source)
                     : std::vector<bool>(static_cast<std::size_t>(targets),
                                         true);
    for (int target = 0; target < targets; ++target) {
      if (!allowed[target]) continue;
      const EdgeOptions options = options_of(edge, source, target);
      for (const EdgeOption& option : options.all()) {
        builder.add(source, target,
                    {option.memory_bytes, option.time_s,
                     static_cast<std::int32_t>(option.reuse)});
      }
    }
  }
  return std::move(builder).build();
}

Problem StrategySpace::build_problem(int num_threads) const {
  Problem problem;
  std::map<const ConfigList*, std::shared_ptr<const NodeTable>> node_tables;
  for (const SpaceNode& node : nodes_) {
    auto& table = node_tables[node.configs];
    if (!table) {
      std::vector<std::vector<Choice>> choices;
      for (const OpCost& cost : node.configs->costs) {
        choices.push_back({{cost.memory_bytes, cost.time_s, 0}});
      }
      table = std::make_shared<NodeTable>(std::move(choices));
    }
    problem.nodes.push_back(table);
  }
  using Key = decltype(kind_of(edges_[0]).key(*this, edges_[0]));
  std::map<Key, int> distinct;
  std::vector<int> first_edge;
  std::vector<int> table_of;
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    const Key key = kind_of(edges_[i]).key(*this, edges_[i]);
    const auto [entry, added] =
        distinct.emplace(key, static_cast<int>(first_edge.size()));
    if (added) first_edge.push_back(static_cast<int>(i));
    table_of.push_back(entry->second);
  }
  std::vector<std::shared_ptr<const EdgeTable>> tables(first_edge.size());
  parallel_for(static_cast<int>(tables.size()),
               resolve_num_threads(num_threads), [&](int table) {
                 tables[table] = edge_table(edges_[first_edge[table]]);
               });
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    problem.edges.push_back(
        {edges_[i].source, edges_[i].target, tables[table_of[i]]});
  }
  return problem;
}

}  // namespace tensoropt
