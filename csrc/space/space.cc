#include "space/space.h"

#include <algorithm>
#include <set>

#include "common/check.h"
#include "space/parameter_copies.h"
#include "space/pending_sums.h"
#include "space/units.h"

namespace tensoropt {

namespace {

// Values that no input or parameter reaches are the same on every device,
// unless parts of them are stored.
std::vector<bool> find_constants(
    const Graph& graph, const std::function<bool(const Node&)>& is_stored) {
  std::vector<bool> constant(graph.values().size(), false);
  for (const Node& node : graph.nodes()) {
    const bool source = node.kind == NodeKind::kConstant && !is_stored(node);
    const bool derived = node.kind == NodeKind::kOp &&
                         std::all_of(node.operands.begin(), node.operands.end(),
                                     [&](ValueId id) { return constant[id]; });
    for (const ValueId id : node.outputs) constant[id] = source || derived;
  }
  return constant;
}

// Whether a view of something smaller has the factor of its own: a part of it
// costs nothing then, and the rest of the whole is not needed.
bool repeats(const Rule& rule, int factor) {
  return rule.view && std::all_of(rule.operands.begin(), rule.operands.end(),
                                  [&](const TensorRule& operand) {
                                    return dim_of(rule, operand, factor) < 0;
                                  });
}

// But for what only repeats a constant.
void make_unsplittable(NodeId node, Rule& rule, Exclusions& left_out) {
  for (int i = 0; i < static_cast<int>(rule.factors.size()); ++i) {
    Factor& factor = rule.factors[i];
    if (factor.size == 1 || repeats(rule, i)) continue;
    left_out.push_back(
        {node, ExclusionReason::kConstant, factor.name, factor.size});
    factor.keep_whole();
  }
  rule.linear_sets.clear();
}

void make_spatial_whole(NodeId node, Rule& rule, Exclusions& left_out) {
  for (Factor& factor : rule.factors) {
    if (!factor.spatial || factor.size == 1) continue;
    left_out.push_back(
        {node, ExclusionReason::kSpatial, factor.name, factor.size});
    factor.keep_whole();
  }
}

// The dims of a tensor that are bound to factors whose parts may differ.
DimSet uneven_dims(const Rule& rule, const TensorRule& tensor) {
  DimSet dims = 0;
  for (std::size_t dim = 0; dim < tensor.dims.size(); ++dim) {
    if (tensor.dims[dim] == kNoFactor) continue;
    const Factor& factor = rule.factors[tensor.dims[dim]];
    if (factor.uneven && factor.size > 1) dims |= DimSet{1} << dim;
  }
  return dims;
}

DimSet sharded_dims(const Layout& layout) {
  DimSet dims = 0;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (layout[axis].is_shard()) dims |= DimSet{1} << layout[axis].dim();
  }
  return dims;
}

}  // namespace

int shared_dim(const Graph& graph, const Node& node,
               const SpaceOptions& options) {
  if (node.kind != NodeKind::kInput || !options.sharded_inputs ||
      options.whole_inputs.contains(node.name)) {
    return -1;
  }
  const int rank = graph.output(node, 0).meta.rank();
  const auto named = options.input_dims.find(node.name);
  if (named == options.input_dims.end()) return rank > 0 ? 0 : -1;
  TO_CHECK(named->second >= 0 && named->second < rank,
           "input '{}' of shape [{}] has no dim {}, in which inputs= says that "
           "it has its rows; name one of its {} dims, or 'replicated'",
           node.name, str_join(graph.output(node, 0).meta.shape, ", "),
           named->second, rank);
  return named->second;
}

StrategySpace::StrategySpace(const Graph& graph, const Registry& registry,
                             const Machine& machine,
                             const SpaceOptions& options)
    : graph_(graph), registry_(registry), machine_(machine), options_(options) {
  find_rules(registry);
  find_saved();
  find_recomputation();
  add_nodes();
  add_edges();
  add_resharders();
  add_buckets();
}

void StrategySpace::find_rules(const Registry& registry) {
  std::set<std::string> unknown;
  rules_.resize(graph_.nodes().size());
  const auto rows_dim = [&](const Node& node) {
    return shared_dim(graph_, node, options_);
  };
  for (const Node& node : graph_.nodes()) {
    if (node.kind == NodeKind::kOp) {
      rules_[node.id] = rule_of(registry, graph_, node);
    }
  }
  const auto keeps_single = [&](const Node& node) {
    return is_stored(node) || rows_dim(node) >= 0;
  };
  for (const NodeId id :
       set_units(graph_, rules_, machine_.mesh, keeps_single)) {
    const Node& node = graph_.node(id);
    if (node.kind == NodeKind::kOp)
      rules_[id] = rule_of(registry, graph_, node);
  }
  constant_ =
      find_constants(graph_, [&](const Node& node) { return is_stored(node); });
  for (const Node& node : graph_.nodes()) {
    if (node.kind != NodeKind::kOp) continue;
    if (!options_.split_spatial) {
      make_spatial_whole(node.id, rules_[node.id], exclusions_);
    }
    if (!options_.idle_configs && !node.outputs.empty() &&
        constant_[node.outputs[0]]) {
      make_unsplittable(node.id, rules_[node.id], exclusions_);
    } else if (!registry.find(node.target) &&
               unknown.insert(node.target).second) {
      unknown_targets_.push_back(node.target);
    }
  }
  if (options_.sharded_inputs) rows_ = batch_rows(rows_dim);
  idle_dims_.emplace(graph_, rules_, rows_dim);
  copies_ = find_parameter_copies(graph_, rules_);
  if (options_.idle_configs) return;
  idle_dims_->remove_from(rules_, exclusions_);
  remove_idle_linear_sets(graph_, rules_, exclusions_);
}

std::vector<BatchRows> StrategySpace::batch_rows(
    const RowsDim& rows_dim) const {
  return find_batch_rows(graph_, rules_, registry_, rows_dim);
}

// Whether ranks may have parts of it only. What a forward changes is whole:
// each rank changes it by itself.
bool StrategySpace::is_stored(const Node& node) const {
  if (node.kind == NodeKind::kParameter) return true;
  if (node.kind != NodeKind::kConstant) return false;
  const Value& value = graph_.output(node, 0);
  return !is_changed(value) &&
         value.meta.num_bytes() >= static_cast<double>(kLargeConstantBytes);
}

bool StrategySpace::is_changed(const Value& value) const {
  return std::any_of(value.uses.begin(), value.uses.end(), [&](const Use& use) {
    if (graph_.node(use.node).kind != NodeKind::kOp) return false;
    const Rule& rule = rules_[use.node];
    return rule.writes || !rule.repeatable;
  });
}

// Whether the operator takes the layout of operand 0 as it comes: moving a
// reshard from before it to after it changes no cost, since it neither computes
// much nor keeps or resizes anything, and its other operands are constants. Of
// a copy of a parameter it is cheaper after, and the gradient's is the same.
bool StrategySpace::follows(const Node& node) const {
  const Rule& rule = rules_[node.id];
  if (rule.view || copies_parameter(node)) return true;
  if (rule.random || !rule.extra_saved.empty() || !rule.collectives.empty() ||
      rule.outputs.size() != 1 || rule.outputs[0].saved ||
      node.operands.empty() || rule.operands[0].saved) {
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

bool StrategySpace::copies_parameter(const Node& node) const {
  return node.kind == NodeKind::kOp && rules_[node.id].cast &&
         copies_[node.outputs[0]].has_value();
}

bool StrategySpace::casts(const SpaceEdge& edge) const {
  const SpaceNode& source = nodes_[edge.source];
  return source.kind == SpaceNodeKind::kOp &&
         copies_parameter(graph_.node(source.node));
}

// Whether nothing but a cast is between a parameter and the edge.
bool StrategySpace::leaves_parameter(const SpaceEdge& edge) const {
  const SpaceNode& source = nodes_[edge.source];
  if (source.kind == SpaceNodeKind::kRelay) return false;
  const Node* node = &graph_.node(source.node);
  if (casts(edge)) {
    const Value& value = graph_.value(node->operands[0]);
    if (value.uses.size() > 1) return false;
    node = &graph_.node(value.producer);
  }
  return node->kind == NodeKind::kParameter;
}

TensorMeta StrategySpace::gradient_meta(const Value& value) const {
  TensorMeta meta = value.meta;
  if (options_.reduce_dtype == ReduceDType::kParameter) {
    meta.dtype = copies_[value.id].value_or(meta.dtype);
  }
  return meta;
}

DimSet StrategySpace::uneven_dims_of(const Value& value) const {
  DimSet dims = 0;
  if (graph_.node(value.producer).kind == NodeKind::kOp) {
    const Rule& rule = rules_[value.producer];
    dims |= uneven_dims(rule, rule.outputs[value.output_index]);
  }
  for (const Use& use : value.uses) {
    if (graph_.node(use.node).kind != NodeKind::kOp) continue;
    const Rule& rule = rules_[use.node];
    dims |= uneven_dims(rule, rule.operands[use.operand]);
  }
  for (const int dim : value.even_dims) dims &= ~(DimSet{1} << dim);
  return dims;
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
    const bool backward = graph_.has_backward(*node);
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

void StrategySpace::find_recomputation() {
  if (!options_.recompute) {
    recomputation_.emplace(graph_);
    return;
  }
  recomputation_.emplace(graph_, rules_, [&](const Node& node) {
    const bool constant = !node.outputs.empty() && constant_[node.outputs[0]];
    return rules_[node.id].repeatable && !constant && !copies_parameter(node);
  });
}

bool StrategySpace::may_be_kept(ValueId value) const {
  return needed_[value] || recomputation_->may_be_needed(value);
}

void StrategySpace::add_nodes() {
  std::unordered_map<std::string, int> times;
  const auto unique = [&](const std::string& name) {
    const int count = ++times[name];
    return count == 1 ? name : str_format("{} ({})", name, count);
  };
  node_of_.assign(graph_.nodes().size(), -1);
  relay_of_.assign(graph_.values().size(), -1);
  for (const Node& node : graph_.nodes()) {
    const auto kind = node.kind == NodeKind::kOp       ? SpaceNodeKind::kOp
                      : node.kind == NodeKind::kOutput ? SpaceNodeKind::kOutput
                                                       : SpaceNodeKind::kSource;
    node_of_[node.id] = static_cast<int>(nodes_.size());
    nodes_.push_back(
        {kind, node.id, -1, unique(node.name), configs_of_node(node)});
    for (const ValueId id : node.outputs) {
      const Value& value = graph_.value(id);
      const bool whole = constant_[id] || node.kind == NodeKind::kInput;
      if (value.uses.size() < 2 || whole) continue;
      const std::string name =
          str_format("{}:{}", node.name, value.output_index);
      relay_of_[id] = static_cast<int>(nodes_.size());
      nodes_.push_back(
          {SpaceNodeKind::kRelay, -1, id, unique(name),
           intern(relay_key(value), [&] { return relay_configs(value); })});
    }
  }
}

void StrategySpace::add_edges() {
  for (const Value& value : graph_.values()) {
    int source = node_of_[value.producer];
    int port = value.output_index;
    if (const int relay = relay_of_[value.id]; relay >= 0) {
      edges_.push_back({source, relay, port, 0, value.id, false});
      source = relay;
      port = 0;
    }
    for (const Use& use : value.uses) {
      const Node& node = graph_.node(use.node);
      const bool follower =
          node.kind == NodeKind::kOp && use.operand == 0 && follows(node);
      edges_.push_back({source, node_of_[use.node], port, use.operand, value.id,
                        follower, recomputation_->pairs(value.id)});
    }
  }
}

// Reshards between layouts that occur need not pass by other dims.
void StrategySpace::add_resharders() {
  struct Splits {
    DimSet dims = 0;
    DimSet uneven = 0;
  };
  std::map<TensorKind, Splits> splits;
  for (const SpaceEdge& edge : edges_) {
    const Value& value = graph_.value(edge.value);
    Splits used;
    const auto add = [&](const Port& port) {
      for (const Layout& layout : {port.value, port.gradient}) {
        used.dims |= sharded_dims(layout);
        used.uneven |= uneven_dims(value.meta.counts(), layout, machine_.mesh);
      }
    };
    for (const SpaceConfig& config : nodes_[edge.source].configs->configs) {
      add(config.outputs[edge.source_port]);
    }
    for (const SpaceConfig& config : nodes_[edge.target].configs->configs) {
      add(config.inputs[edge.target_port]);
    }
    for (const TensorMeta& meta : {value.meta, gradient_meta(value)}) {
      Splits& all = splits[{meta.counts(), meta.unit_bytes()}];
      all.dims |= used.dims;
      all.uneven |= used.uneven;
    }
  }
  for (const auto& [tensor, used] : splits) {
    const auto& [counts, unit_bytes] = tensor;
    resharders_.try_emplace(
        tensor, machine_.mesh, machine_.collectives, machine_.device, counts,
        unit_bytes, TensorResharder::kMaxLayouts, used.dims, used.uneven);
  }
}

void StrategySpace::add_buckets() {
  const BucketedCollectives shards(
      machine_.collectives,
      {Collective::kAllGather, Collective::kReduceScatter},
      options_.shard_bytes);
  const BucketedCollectives together(shards, {Collective::kAllReduce},
                                     options_.bucket_bytes);
  const auto add = [&](std::map<TensorKind, MoveCosts>& costs,
                       const TensorMeta& meta, double bucket_bytes) {
    if (real_dtype(meta.dtype) != meta.dtype) return;  // sent by themselves
    const double least = meta.num_bytes() / machine_.mesh.num_devices();
    if (least >= bucket_bytes) return;  // no bucket is shared
    const Shape counts = meta.counts();
    costs.try_emplace({counts, meta.unit_bytes()}, machine_.mesh, together,
                      machine_.device, counts, meta.unit_bytes());
  };
  for (const SpaceEdge& edge : edges_) {
    if (!leaves_parameter(edge)) continue;
    const Value& value = graph_.value(edge.value);
    add(gathered_together_, value.meta, options_.shard_bytes);
    add(summed_together_, gradient_meta(value), options_.bucket_bytes);
  }
}

LocalCall StrategySpace::local_call_of(NodeId node, const OpConfig& config,
                                       int rank) const {
  return local_call(registry_, graph_, graph_.node(node), rules_[node], config,
                    machine_.mesh, rank);
}

void StrategySpace::check(const Strategy& strategy) const {
  TO_CHECK(strategy.config.size() == nodes_.size() &&
               strategy.edge_tag.size() == edges_.size(),
           "the strategy has {} nodes and {} edges, the model has {} and {}: "
           "it belongs to another model",
           strategy.config.size(), strategy.edge_tag.size(), nodes_.size(),
           edges_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const auto count = static_cast<int>(nodes_[i].configs->configs.size());
    TO_CHECK(strategy.config[i] >= 0 && strategy.config[i] < count,
             "config {} of '{}' does not exist, there are {}",
             strategy.config[i], nodes_[i].name, count);
  }
}

const TensorResharder& StrategySpace::resharder(const TensorMeta& meta) const {
  return resharders_.at({meta.counts(), meta.unit_bytes()});
}

SharedResharder StrategySpace::value_resharder(const SpaceEdge& edge) const {
  return shared_resharder(edge, graph_.value(edge.value).meta,
                          gathered_together_);
}

SharedResharder StrategySpace::gradient_resharder(const SpaceEdge& edge) const {
  return shared_resharder(edge, gradient_meta(graph_.value(edge.value)),
                          summed_together_);
}

SharedResharder StrategySpace::shared_resharder(
    const SpaceEdge& edge, const TensorMeta& meta,
    const std::map<TensorKind, MoveCosts>& in_bucket) const {
  if (!leaves_parameter(edge)) return resharder(meta);
  const auto found = in_bucket.find({meta.counts(), meta.unit_bytes()});
  return {resharder(meta), found == in_bucket.end() ? nullptr : &found->second};
}

}  // namespace tensoropt
