#include "space/model.h"

#include <algorithm>

#include "common/check.h"
#include "space/fusion.h"
#include "space/parameter_copies.h"
#include "space/pending_sums.h"
#include "space/units.h"

namespace tensoropt {

namespace {

// Values that no input or parameter reaches are the same on every device,
// unless parts of them are stored.
IndexedVector<ValueId, bool> find_constants(
    const Graph& graph, const std::function<bool(const Node&)>& is_stored) {
  IndexedVector<ValueId, bool> constant(graph.values().size(), false);
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
    left_out.push_back({node, ExclusionReason::kConstant, factor.name});
    factor.keep_whole();
  }
  rule.linear_sets.clear();
}

void make_spatial_whole(NodeId node, Rule& rule, Exclusions& left_out) {
  for (Factor& factor : rule.factors) {
    if (!factor.spatial || factor.size == 1) continue;
    left_out.push_back({node, ExclusionReason::kSpatial, factor.name});
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

}  // namespace

SpaceModel::SpaceModel(const Graph& graph, const Registry& registry,
                       const Machine& machine, const SpaceOptions& options)
    : graph_(graph), registry_(registry), machine_(machine), options_(options) {
  find_rules();
  find_saved();
  find_recomputation();
}

void SpaceModel::find_rules() {
  rules_.resize(graph_.nodes().size());
  const auto rows_dim = [&](const Node& node) {
    return shared_dim(graph_, node, options_);
  };
  for (const Node& node : graph_.nodes()) {
    if (node.kind == NodeKind::kOp) {
      rules_[node.id] = rule_of(registry_, graph_, node);
    }
  }
  const auto keeps_single = [&](const Node& node) {
    return is_stored(node) || rows_dim(node) >= 0;
  };
  for (const NodeId id :
       set_units(graph_, rules_, machine_.mesh, keeps_single)) {
    const Node& node = graph_.node(id);
    if (node.kind == NodeKind::kOp)
      rules_[id] = rule_of(registry_, graph_, node);
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
    }
  }
  if (options_.sharded_inputs) rows_ = batch_rows(rows_dim);
  idle_dims_.emplace(graph_, rules_, rows_dim);
  copies_ = find_parameter_copies(graph_, rules_);
  if (options_.compiled) fuse(graph_, rules_);
  if (options_.idle_configs) return;
  idle_dims_->remove_from(rules_, exclusions_);
  remove_idle_linear_sets(graph_, rules_, exclusions_);
}

IndexedVector<ValueId, BatchRows> SpaceModel::batch_rows(
    const RowsDim& rows_dim) const {
  return find_batch_rows(graph_, rules_, registry_, rows_dim);
}

// Whether ranks may have parts of it only. What a forward changes is whole:
// each rank changes it by itself.
bool SpaceModel::is_stored(const Node& node) const {
  if (node.kind == NodeKind::kParameter) return true;
  if (node.kind != NodeKind::kConstant) return false;
  const Value& value = graph_.output(node, 0);
  return !is_changed(value) &&
         value.meta.num_bytes() >= static_cast<double>(kLargeConstantBytes);
}

bool SpaceModel::is_changed(const Value& value) const {
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
bool SpaceModel::follows(const Node& node) const {
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

bool SpaceModel::copies_parameter(const Node& node) const {
  return node.kind == NodeKind::kOp && rules_[node.id].cast &&
         copies_[node.outputs[0]].has_value();
}

TensorMeta SpaceModel::gradient_meta(const Value& value) const {
  TensorMeta meta = value.meta;
  if (options_.reduce_dtype == ReduceDType::kParameter) {
    meta.dtype = copies_[value.id].value_or(meta.dtype);
  }
  return meta;
}

DimSet SpaceModel::uneven_dims_of(const Value& value) const {
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
void SpaceModel::find_saved() {
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

void SpaceModel::find_recomputation() {
  if (!options_.recompute) {
    recomputation_.emplace(graph_);
    return;
  }
  recomputation_.emplace(graph_, rules_, [&](const Node& node) {
    const bool constant = !node.outputs.empty() && constant_[node.outputs[0]];
    return rules_[node.id].repeatable && !constant && !copies_parameter(node);
  });
}

bool SpaceModel::may_be_kept(ValueId value) const {
  return needed_[value] || recomputation_->may_be_needed(value);
}

LocalCall SpaceModel::local_call_of(NodeId node, const OpConfig& config,
                                    int rank) const {
  return local_call(registry_, graph_, graph_.node(node), rules_[node], config,
                    machine_.mesh, rank);
}

}  // namespace tensoropt
