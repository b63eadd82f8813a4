#include "space/space_problem.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/workers.h"
#include "space/known_times.h"

namespace tensoropt {

// Everything that the table of an edge depends on.
struct SpaceProblem::EdgeKind {
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

SpaceProblem::EdgeKind SpaceProblem::kind_of(const SpaceEdge& edge) const {
  const Value& value = space_.graph().value(edge.value);
  const SpaceNode& source = space_.nodes()[edge.source];
  const SpaceNode& target = space_.nodes()[edge.target];
  EdgeKind kind{{value.meta, value.requires_grad, false,
                 space_.model().is_saved_by_producer(edge.value), true,
                 space_.machine().overheads.reshard_s},
                space_.value_resharder(edge),
                space_.gradient_resharder(edge),
                source.configs,
                target.configs,
                edge.source_port,
                edge.target_port,
                edge.follows,
                edge.pairs,
                space_.model().recomputation().may_leave(edge.value)};
  kind.source_relay = source.kind == SpaceNodeKind::kRelay;
  kind.target_relay = target.kind == SpaceNodeKind::kRelay;
  if (target.kind == SpaceNodeKind::kOp) {
    const Node& node = space_.graph().node(target.node);
    const Rule& rule = space_.rule(node.id);
    const bool through = rule.alias && edge.target_port == 0 &&
                         kind.source_relay &&
                         space_.model().is_needed(node.outputs[0]);
    const bool backward = space_.graph().output(node, 0).requires_grad;
    kind.spec.consumer_saves =
        (rule.operands[edge.target_port].saved && backward) || through;
  }
  if (space_.casts(edge)) {
    const ValueId wide = space_.graph().node(source.node).operands[0];
    kind.spec.cast_from = space_.graph().value(wide).meta.dtype;
    kind.spec.producer_keeps = space_.model().is_saved_by_producer(wide);
  }
  kind.spec.of_parameter = space_.leaves_parameter(edge);
  if (kind.target_relay) kind.spec.may_replay = false;
  // Those on their way to a relay have nothing to overlap with: all consumers
  // of the value wait for it, and its gradient is there when the last has
  // added.
  if (!kind.target_relay && kind.spec.of_parameter) {
    kind.spec.forward_exposed = space_.machine().overheads.exposed_parameters;
    kind.spec.backward_exposed = space_.machine().overheads.exposed_gradients;
  }
  return kind;
}

EdgeOptions SpaceProblem::options_of(const SpaceEdge& edge, int source_config,
                                     int target_config) const {
  const auto ways = ways_of(edge, kind_of(edge), source_config, target_config);
  return ways ? edge_options(*ways, step_) : EdgeOptions();
}

std::optional<EdgeWays> SpaceProblem::ways_of(const SpaceEdge& edge,
                                              const EdgeKind& kind,
                                              int source_config,
                                              int target_config) const {
  const Port& to = space_.target_port(edge, target_config);
  const auto spec = spec_of(edge, kind, source_config, target_config,
                            has_lone_entry(kind, to));
  if (!spec) return std::nullopt;
  return edge_ways(*spec, space_.machine().mesh, kind.values, kind.gradients,
                   space_.source_port(edge, source_config), to);
}

// Whether the part of some device that is kept after the reshard is special.
bool SpaceProblem::has_lone_entry(const EdgeKind& kind, const Port& to) const {
  return tensoropt::has_lone_entry(*kind.spec.meta, to.value,
                                   space_.machine().mesh);
}

bool SpaceProblem::allows(const SpaceEdge& edge, int source_config,
                          int target_config, const EdgeChoice& choice) const {
  const auto ways = ways_of(edge, kind_of(edge), source_config, target_config);
  return ways && is_option(choice, *ways, step_);
}

std::optional<EdgeSpec> SpaceProblem::spec_of(const SpaceEdge& edge,
                                              const EdgeKind& kind,
                                              int source_config,
                                              int target_config,
                                              bool lone_entry) const {
  EdgeSpec spec = kind.spec;
  const SpaceConfig& source =
      space_.nodes()[edge.source].configs->configs[source_config];
  const SpaceConfig& target =
      space_.nodes()[edge.target].configs->configs[target_config];
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
  if (spec.consumer_saves && lone_entry) {
    if (recomputed || !spec.may_keep) return std::nullopt;
    spec.may_replay = false;
  }
  return spec;
}

// A follower takes the layout it gets, if it can: the target configs allowed.
std::vector<bool> SpaceProblem::followers(const SpaceEdge& edge,
                                          int source_config) const {
  const ConfigList& targets = *space_.nodes()[edge.target].configs;
  const Layout& value = space_.source_port(edge, source_config).value;
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

// The configs of both ends that a table is made for; no mask: all.
struct SpaceProblem::Cells {
  ConfigMask sources = {};
  ConfigMask targets = {};
  bool without_reshards = false;

  bool has_source(int config) const {
    return sources.empty() || sources[config];
  }
  bool has_target(int config) const {
    return targets.empty() || targets[config];
  }

  auto operator<=>(const Cells&) const = default;
};

SpaceProblem::Cells SpaceProblem::cells_of(const SpaceEdge& edge,
                                           const ProblemPart& part) {
  Cells cells{.without_reshards = part.without_reshards};
  if (!part.allowed.empty()) {
    cells.sources = part.allowed[edge.source];
    cells.targets = part.allowed[edge.target];
  }
  return cells;
}

// By step.
std::vector<std::shared_ptr<const EdgeTable>> SpaceProblem::edge_tables(
    const SpaceEdge& edge, const Cells& cells,
    std::span<const Projection> steps) const {
  const int sources =
      static_cast<int>(space_.nodes()[edge.source].configs->configs.size());
  const int targets =
      static_cast<int>(space_.nodes()[edge.target].configs->configs.size());
  const EdgeKind kind = kind_of(edge);
  std::vector<Port> source_ports;
  std::vector<Port> target_ports;
  for (int source = 0; source < sources; ++source) {
    source_ports.push_back(space_.source_port(edge, source));
  }
  for (int target = 0; target < targets; ++target) {
    target_ports.push_back(space_.target_port(edge, target));
  }
  const Mesh& mesh = space_.machine().mesh;
  std::vector<EndBytes> at_source;
  for (const Port& port : source_ports) {
    at_source.push_back(source_bytes(kind.spec, mesh, port));
  }
  std::vector<EndBytes> at_target;
  std::vector<bool> lone_entries;
  for (const Port& port : target_ports) {
    at_target.push_back(target_bytes(kind.spec, mesh, port));
    lone_entries.push_back(has_lone_entry(kind, port));
  }
  KnownTimes times(kind.values, kind.gradients, source_ports, target_ports);
  std::vector<EdgeTable::Builder> builders(
      steps.size(), EdgeTable::Builder(sources, targets));
  for (int source = 0; source < sources; ++source) {
    if (!cells.has_source(source)) continue;
    const std::vector<bool> reached =
        edge.follows
            ? followers(edge, source)
            : std::vector<bool>(static_cast<std::size_t>(targets), true);
    for (int target = 0; target < targets; ++target) {
      if (!reached[target] || !cells.has_target(target)) continue;
      const auto spec =
          spec_of(edge, kind, source, target, lone_entries[target]);
      if (!spec) continue;
      const ReshardTimes seconds =
          cells.without_reshards
              ? ReshardTimes()
              : times.between(source, target, spec->backward);
      const EdgeWays ways =
          edge_ways(*spec, seconds, source_ports[source], at_source[source],
                    target_ports[target], at_target[target]);
      for (std::size_t step = 0; step < steps.size(); ++step) {
        const EdgeOptions options = edge_options(ways, steps[step]);
        for (const EdgeOption& option : options.all()) {
          builders[step].add(
              source, target,
              {option.memory_bytes, option.time_s, option.choice.tag()});
        }
      }
    }
  }
  std::vector<std::shared_ptr<const EdgeTable>> tables;
  for (EdgeTable::Builder& builder : builders) {
    tables.push_back(std::move(builder).build());
  }
  return tables;
}

void SpaceProblem::add_nodes(Problem& problem, const Projection& step) const {
  std::map<const ConfigList*, std::shared_ptr<const NodeTable>> tables;
  for (const SpaceNode& node : space_.nodes()) {
    auto& table = tables[node.configs];
    if (!table) {
      std::vector<std::vector<Choice>> choices;
      for (const CostParts& cost : node.configs->costs) {
        choices.push_back({{step.memory_bytes(cost), step.time_s(cost), 0}});
      }
      table = std::make_shared<NodeTable>(std::move(choices));
    }
    problem.nodes.push_back(table);
  }
}

void SpaceProblem::add_edges(std::vector<Problem>& problems,
                             std::span<const Projection> steps,
                             const ProblemPart& part, int num_threads) const {
  const std::vector<SpaceEdge>& edges = space_.edges();
  std::map<std::pair<EdgeKind, Cells>, int> distinct;
  std::vector<int> first_edge;
  std::vector<int> table_of;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const auto [entry, added] =
        distinct.try_emplace({kind_of(edges[i]), cells_of(edges[i], part)},
                             static_cast<int>(first_edge.size()));
    if (added) first_edge.push_back(static_cast<int>(i));
    table_of.push_back(entry->second);
  }
  std::vector<std::vector<std::shared_ptr<const EdgeTable>>> tables(
      first_edge.size());
  Workers workers(num_threads);
  workers.run(static_cast<int>(tables.size()), [&](int table) {
    const SpaceEdge& edge = edges[first_edge[table]];
    tables[table] = edge_tables(edge, cells_of(edge, part), steps);
  });
  for (std::size_t i = 0; i < edges.size(); ++i) {
    for (std::size_t step = 0; step < steps.size(); ++step) {
      problems[step].edges.push_back({problem_node(edges[i].source),
                                      problem_node(edges[i].target),
                                      tables[table_of[i]][step]});
    }
  }
}

Problem SpaceProblem::build(int num_threads, const ProblemPart& part) const {
  std::vector<Problem> problems(1);
  add_nodes(problems[0], step_);
  add_edges(problems, std::span(&step_, 1), part, num_threads);
  return std::move(problems[0]);
}

std::vector<Problem> SpaceProblem::build_all(std::span<const StepShape> shapes,
                                             int num_threads) const {
  std::vector<Projection> steps;
  std::vector<Problem> problems(shapes.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    steps.emplace_back(shapes[i], space_.machine().device);
    add_nodes(problems[i], steps.back());
  }
  add_edges(problems, steps, {}, num_threads);
  return problems;
}

}  // namespace tensoropt
