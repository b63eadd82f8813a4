#include "describe/descriptions.h"

#include "describe/work_splits.h"

namespace tensoropt {

namespace {

EdgeRow edge_row(const StrategySpace& space, const SpaceEdge& edge,
                 const Strategy& strategy, EdgeChoice choice) {
  const Port& from = space.source_port(edge, strategy.config[edge.source]);
  const Port& to = space.target_port(edge, strategy.config[edge.target]);
  return {.source = space.nodes()[edge.source].name,
          .target = space.nodes()[edge.target].name,
          .value = edge.value,
          .layout_from = from.value.to_string(),
          .layout_to = to.value.to_string(),
          .gradient_from = to.gradient.to_string(),
          .gradient_to = from.gradient.to_string(),
          .saved = choice.saved,
          .held = choice.held,
          .summed = choice.summed};
}

std::vector<PortLayouts> layouts_of(const std::vector<Port>& ports) {
  std::vector<PortLayouts> rows;
  for (const Port& port : ports) {
    rows.push_back({port.value.to_string(), port.gradient.to_string()});
  }
  return rows;
}

std::string target_of(const StrategySpace& space, const SpaceNode& node) {
  if (node.kind == SpaceNodeKind::kOp) {
    return space.graph().node(node.node).target;
  }
  return node.kind == SpaceNodeKind::kRelay ? "relay" : "parameter";
}

}  // namespace

std::vector<NodeRow> node_rows(const StrategySpace& space) {
  std::vector<NodeRow> rows;
  for (const SpaceNode& node : space.nodes()) {
    NodeRow row{.name = node.name,
                .target = !node.node.is_none()
                              ? space.graph().node(node.node).target
                              : "relay",
                .graph_node = node.node,
                .configs = {},
                .splits = {},
                .saved = {}};
    for (const SpaceConfig& config : node.configs->configs) {
      row.configs.push_back(config.label);
      row.splits.push_back(config.splits);
      row.saved.push_back(config.saved);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<EdgeEnd> edge_ends(const StrategySpace& space) {
  std::vector<EdgeEnd> ends;
  for (const SpaceEdge& edge : space.edges()) {
    ends.push_back(
        {edge.value, space.nodes()[edge.target].node, edge.target_port});
  }
  return ends;
}

std::vector<EdgeRow> edge_rows(const StrategySpace& space,
                               const Strategy& strategy) {
  space.check(strategy);
  std::vector<EdgeRow> rows;
  for (std::size_t i = 0; i < space.edges().size(); ++i) {
    rows.push_back(edge_row(space, space.edges()[i], strategy,
                            EdgeChoice::of(strategy.edge_tag[i])));
  }
  return rows;
}

std::vector<WorkRow> work_rows(const StrategySpace& space,
                               const Strategy& strategy) {
  space.check(strategy);
  const WorkSplits splits(space);
  std::vector<WorkRow> rows;
  for (std::size_t i = 0; i < space.nodes().size(); ++i) {
    const SpaceNode& node = space.nodes()[i];
    if (node.kind != SpaceNodeKind::kOp) continue;
    const Node& op = space.graph().node(node.node);
    const Rule& rule = space.rule(op.id);
    WorkRow row{
        .name = node.name,
        .flops = rule.forward_flops +
                 (space.graph().has_backward(op) ? rule.backward_flops : 0),
        .splits = {}};
    const SpaceConfig& config = node.configs->configs[strategy.config[i]];
    for (const WorkSplit split : splits.of(node, config)) {
      row.splits.emplace_back(to_string(split));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<ConfigPorts> port_rows(const StrategySpace& space,
                                   SpaceNodeId node) {
  std::vector<ConfigPorts> rows;
  for (const SpaceConfig& config : space.nodes().at(node).configs->configs) {
    rows.push_back({layouts_of(config.inputs), layouts_of(config.outputs)});
  }
  return rows;
}

std::vector<OutputRow> output_rows(const StrategySpace& space,
                                   const std::map<std::string, int>& dims) {
  const IndexedVector<ValueId, BatchRows> rows =
      space.model().batch_rows([&](const Node& node) {
        const auto found = dims.find(node.name);
        return found == dims.end() ? -1 : found->second;
      });
  std::vector<OutputRow> found;
  for (const Node& node : space.graph().nodes()) {
    if (node.kind != NodeKind::kOutput) continue;
    for (const ValueId id : node.operands) {
      found.push_back({rows[id].dim(), rows[id].depends});
    }
  }
  return found;
}

NodeUnits units_of_node(const StrategySpace& space, NodeId id) {
  const auto units = [&](const std::vector<ValueId>& values) {
    std::vector<Shape> rows;
    for (const ValueId value : values) {
      rows.push_back(space.graph().value(value).meta.units);
    }
    return rows;
  };
  const Node& node = space.graph().node(id);
  return {units(node.operands), units(node.outputs)};
}

std::vector<EstimateRow> estimate_rows(const StrategySpace& space,
                                       const OpProfile& operators,
                                       const Strategy& strategy) {
  space.check(strategy);
  std::vector<EstimateRow> rows;
  for (std::size_t i = 0; i < space.nodes().size(); ++i) {
    const SpaceNode& node = space.nodes()[i];
    if (node.kind != SpaceNodeKind::kOp) continue;
    const SpaceConfig& config = node.configs->configs[strategy.config[i]];
    const LocalCall call = space.model().local_call_of(node.node, config.uses);
    const OpEstimate estimate = operators.estimate(call);
    const PassTimes& times = estimate.times;
    rows.push_back(
        {.node = SpaceNodeId(i),
         .name = node.name,
         .key = call.key,
         .family = call.family,
         .source = std::string(to_string(estimate.source)),
         .time_s = times.forward_s + times.backward_s,
         .again_s = config.saved == Saved::kRemade ? times.forward_s : 0.0,
         .error = estimate.error});
  }
  return rows;
}

std::vector<ExplanationRow> explanation_rows(const StrategySpace& space,
                                             const StepShape& shape) {
  std::vector<ExplanationRow> rows;
  for (NodeExplanation& found : explain(space, shape)) {
    const SpaceNode& node = space.nodes()[found.space_node];
    rows.push_back({node.name, target_of(space, node), std::move(found)});
  }
  return rows;
}

std::vector<NodeId> parameter_copies(const StrategySpace& space) {
  std::vector<NodeId> nodes;
  for (const Node& node : space.graph().nodes()) {
    if (space.model().copies_parameter(node)) nodes.push_back(node.id);
  }
  return nodes;
}

}  // namespace tensoropt
