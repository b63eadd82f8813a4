// The cost tables of the space: the problem that the search solves.

#include <algorithm>

#include "common/workers.h"
#include "space/space.h"

namespace tensoropt {

namespace {

// A sum that is added to is read and written, what is added is read.
constexpr double kAdditionTraffic = 3;

}  // namespace

// Everything that the table of an edge depends on.
struct StrategySpace::EdgeKind {
  EdgeSpec spec;
  SharedResharder values;
  SharedResharder gradients;
  const ConfigList* source = nullptr;
  const ConfigList* target = nullptr;
  int source_port = 0;
  int target_port = 0;
  bool follows = false;
  AllowedPairs pairs = AllowedPairs::all();
  bool may_leave = false;  // the value, to the chain that makes it
  bool source_relay = false;
  bool target_relay = false;

  auto operator<=>(const EdgeKind&) const = default;
};

StrategySpace::EdgeKind StrategySpace::kind_of(const SpaceEdge& edge) const {
  const Value& value = graph_.value(edge.value);
  const SpaceNode& source = nodes_[edge.source];
  const SpaceNode& target = nodes_[edge.target];
  EdgeKind kind{{value.meta, value.requires_grad, false,
                 static_cast<bool>(saved_by_producer_[edge.value]), true,
                 machine_.overheads.reshard_s},
                value_resharder(edge),
                gradient_resharder(edge),
                source.configs,
                target.configs,
                edge.source_port,
                edge.target_port,
                edge.follows,
                edge.pairs,
                recomputation_->may_leave(edge.value)};
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
  if (casts(edge)) {
    const ValueId wide = graph_.node(source.node).operands[0];
    kind.spec.cast_from = graph_.value(wide).meta.dtype;
    kind.spec.producer_keeps = saved_by_producer_[wide];
  }
  kind.spec.micro_batches = options_.micro_batches;
  kind.spec.of_parameter = leaves_parameter(edge);
  kind.spec.accumulation_s_per_byte =
      kAdditionTraffic / machine_.device.copy_bytes_per_s();
  if (kind.target_relay) kind.spec.may_replay = false;
  // Those on their way to a relay have nothing to overlap with: all consumers
  // of the value wait for it, and its gradient is there when the last has
  // added.
  if (!kind.target_relay && kind.spec.of_parameter) {
    kind.spec.forward_exposed = machine_.overheads.exposed_parameters;
    kind.spec.backward_exposed = machine_.overheads.exposed_gradients;
  }
  return kind;
}

EdgeOptions StrategySpace::options_of(const SpaceEdge& edge, int source_config,
                                      int target_config) const {
  return options_of(edge, kind_of(edge), source_config, target_config);
}

EdgeOptions StrategySpace::options_of(const SpaceEdge& edge,
                                      const EdgeKind& kind, int source_config,
                                      int target_config) const {
  const auto spec = spec_of(edge, kind, source_config, target_config);
  if (!spec) return {};
  return edge_options(*spec, machine_.mesh, kind.values, kind.gradients,
                      source_port(edge, source_config),
                      target_port(edge, target_config));
}

bool StrategySpace::allows(const SpaceEdge& edge, int source_config,
                           int target_config, const EdgeChoice& choice) const {
  const EdgeKind kind = kind_of(edge);
  const auto spec = spec_of(edge, kind, source_config, target_config);
  return spec && is_option(choice, *spec, machine_.mesh, kind.values,
                           kind.gradients, source_port(edge, source_config),
                           target_port(edge, target_config));
}

std::optional<EdgeSpec> StrategySpace::spec_of(const SpaceEdge& edge,
                                               const EdgeKind& kind,
                                               int source_config,
                                               int target_config) const {
  EdgeSpec spec = kind.spec;
  const SpaceConfig& source =
      nodes_[edge.source].configs->configs[source_config];
  const SpaceConfig& target =
      nodes_[edge.target].configs->configs[target_config];
  const Port& from = source.outputs[edge.source_port];
  const Port& to = target.inputs[edge.target_port];
  const bool recomputed = source.saved == Saved::kRemade;
  const bool source_again = recomputed && !kind.source_relay;
  const bool target_again =
      target.saved == Saved::kRemade && !kind.target_relay;
  if (!kind.pairs.has(source_again, target_again)) {
    return std::nullopt;
  }
  if (target_again) spec.consumer_saves = true;
  if (recomputed) spec.producer_keeps = true;
  if (kind.target_relay) {
    const bool left = target.saved == Saved::kRemade;
    if (kind.may_leave && recomputed != left) {
      return std::nullopt;
    }
    spec.consumer_saves = target.saved != Saved::kNothing;
    if (left) {
      spec.may_keep = false;
      spec.may_replay = true;
    }
  }
  if (kind.source_relay) {
    const bool available = source.saved != Saved::kNothing;
    spec.producer_keeps = spec.may_replay = available;
    // The relay's own copy is the one to keep then.
    if (!available && spec.consumer_saves && from.value == to.value) {
      return std::nullopt;
    }
  }
  // What a rank keeps of a copy it need not make again, so the ranks would
  // not communicate alike in backward.
  if (spec.consumer_saves &&
      has_lone_entry(*spec.meta, to.value, machine_.mesh)) {
    if (recomputed || !spec.may_keep) return std::nullopt;
    spec.may_replay = false;
  }
  return spec;
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
  const EdgeKind kind = kind_of(edge);
  EdgeTable::Builder builder(sources, targets);
  for (int source = 0; source < sources; ++source) {
    const std::vector<bool> allowed =
        edge.follows
            ? followers(edge, source)
            : std::vector<bool>(static_cast<std::size_t>(targets), true);
    for (int target = 0; target < targets; ++target) {
      if (!allowed[target]) continue;
      const EdgeOptions options = options_of(edge, kind, source, target);
      for (const EdgeOption& option : options.all()) {
        builder.add(source, target,
                    {option.memory_bytes, option.time_s, option.choice.tag()});
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
  std::map<EdgeKind, int> distinct;
  std::vector<int> first_edge;
  std::vector<int> table_of;
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    const auto [entry, added] = distinct.emplace(
        kind_of(edges_[i]), static_cast<int>(first_edge.size()));
    if (added) first_edge.push_back(static_cast<int>(i));
    table_of.push_back(entry->second);
  }
  std::vector<std::shared_ptr<const EdgeTable>> tables(first_edge.size());
  Workers workers(num_threads);
  workers.run(static_cast<int>(tables.size()), [&](int table) {
    tables[table] = edge_table(edges_[first_edge[table]]);
  });
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    problem.edges.push_back(
        {edges_[i].source, edges_[i].target, tables[table_of[i]]});
  }
  return problem;
}

}  // namespace tensoropt
