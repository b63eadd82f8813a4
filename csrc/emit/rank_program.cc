#include "emit/rank_program.h"

#include "common/check.h"
#include "common/step_code.h"
#include "cost/local_call.h"

namespace tensoropt {

RankProgram::RankProgram(const StrategySpace& space, const Registry& registry,
                         const Strategy& strategy, int rank)
    : space_(space), registry_(registry), strategy_(strategy), rank_(rank) {
  space.check(strategy);
}

namespace {

std::vector<EmittedLookup> emitted_lookups(const Rule& rule,
                                           const SpaceConfig& config,
                                           const LocalForm& form) {
  std::vector<EmittedLookup> result;
  for (const Lookup& lookup : rule.lookups) {
    const AxisSet axes = config.inputs[lookup.operand].value.sharding_axes();
    if (axes == 0 && form.target.empty()) continue;
    result.push_back({lookup.operand, lookup.wraps ? -lookup.size : 0,
                      lookup.size, lookup.ignored, axes});
  }
  return result;
}

}  // namespace

const SpaceConfig& RankProgram::config_of(SpaceNodeId space_node) const {
  return space_.nodes()[space_node]
      .configs->configs[strategy_.config[space_node]];
}

bool EmittedReshard::is_bucketed() const {
  if (backward.num_steps != 1) return false;
  const StepKind kind = backward.first_kind();
  return kind == StepKind::kAllReduce || kind == StepKind::kReduceScatter;
}

std::optional<std::int64_t> EmittedReshard::gathered_dim() const {
  const bool gathers = forward.num_steps == 1 && !forward.is_uneven() &&
                       forward.first_kind() == StepKind::kAllGather;
  const bool is_real = real_dtype(dtype) == dtype;
  if (!gathers || !is_real || value_bytes == 0 || value_bytes >= shard_bytes) {
    return std::nullopt;
  }
  return forward.steps[1];
}

EmittedReshard RankProgram::reshard(SpaceEdgeId edge_index) const {
  const SpaceEdge& edge = space_.edges()[edge_index];
  const Port& from = config_of(edge.source).outputs[edge.source_port];
  const Port& to = config_of(edge.target).inputs[edge.target_port];
  const Value& value = space_.graph().value(edge.value);
  const Mesh& mesh = space_.machine().mesh;
  const TensorMeta gradient = space_.model().gradient_meta(value);
  EmittedReshard reshard;
  reshard.forward =
      encode(space_.value_resharder(edge).steps(from.value, to.value),
             value.meta, from.value, mesh, rank_);
  if (value.requires_grad) {
    reshard.backward = encode(
        space_.gradient_resharder(edge).steps(to.gradient, from.gradient),
        value.meta, to.gradient, mesh, rank_);
  }
  reshard.value_bytes = local_bytes(value.meta, to.value, mesh);
  reshard.shard_bytes = space_.options().shard_bytes;
  reshard.casts = space_.casts(edge);
  reshard.dtype = value.meta.dtype;
  reshard.reduce_dtype = gradient.dtype;
  reshard.choice = EdgeChoice::of(strategy_.edge_tag[edge_index]);
  reshard.source_saved = config_of(edge.source).saved;
  return reshard;
}

const Layout& RankProgram::gradient_layout(SpaceEdgeId edge_index) const {
  const SpaceEdge& edge = space_.edges()[edge_index];
  return config_of(edge.target).inputs[edge.target_port].gradient;
}

EmittedCall RankProgram::call(NodeId node_id) const {
  const Graph& graph = space_.graph();
  const Node& node = graph.node(node_id);
  const Rule& rule = space_.rule(node_id);
  const SpaceConfig& config = config_of(space_.node_of(node_id));
  const Mesh& mesh = space_.machine().mesh;
  const LocalContext context =
      local_context(graph, node, rule, config.uses, mesh, rank_);
  EmittedCall call;
  call.form = local_form_of(registry_, graph, node, context);
  call.lookups = emitted_lookups(rule, config, call.form);
  call.random = rule.random;
  call.saved = config.saved;
  if (!config.outputs.empty()) {
    AxisSet split = 0;
    for (const AxisSet axes : context.factor_axes) split |= axes;
    call.shard_index = mesh.index_in(split, rank_);
  }
  return call;
}

const Layout& RankProgram::layout_of(ValueId value) const {
  const Value& meta = space_.graph().value(value);
  return config_of(space_.node_of(meta.producer))
      .outputs[meta.output_index]
      .value;
}

}  // namespace tensoropt
