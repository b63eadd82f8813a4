#include "space/space.h"

#include <numeric>
#include <tuple>
#include <unordered_map>

#include "common/check.h"

namespace tensoropt {

namespace {

DimSet sharded_dims(const Layout& layout) {
  DimSet dims = 0;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (layout[axis].is_shard()) dims |= DimSet{1} << layout[axis].dim();
  }
  return dims;
}

// The dims of a tensor that layouts split, and those that they cut into parts
// of different sizes.
struct SplitDims {
  DimSet all = 0;
  DimSet uneven = 0;

  void add(const SplitDims& other) {
    all |= other.all;
    uneven |= other.uneven;
  }
  void add(const Port& port, const Shape& counts, const Mesh& mesh) {
    for (const Layout& layout : {port.value, port.gradient}) {
      add({sharded_dims(layout), uneven_dims(counts, layout, mesh)});
    }
  }
};

// What the fastest paths between layouts of a tensor depend on. Tensors of
// equally many bytes have the same where their dims can be cut alike, however
// large each of them is.
struct ReshardPaths {
  std::int64_t num_bytes = 0;
  DimSet uneven = 0;  // dims that are cut into unequal parts
  // By dim: 0 if it stays whole, its size if it is uneven, else the largest
  // number of equal parts that there can be.
  std::vector<std::int64_t> cuts = {};

  auto operator<=>(const ReshardPaths&) const = default;
};

ReshardPaths paths_of(const Shape& counts, std::int64_t unit_bytes,
                      const SplitDims& splits, const Mesh& mesh) {
  ReshardPaths paths{num_elements(counts) * unit_bytes, splits.uneven, {}};
  for (std::size_t dim = 0; splits.all >> dim != 0; ++dim) {
    std::int64_t cuts = 0;
    if ((splits.all >> dim & 1) != 0) {
      const bool uneven = (splits.uneven >> dim & 1) != 0;
      cuts = uneven || counts[dim] == 0
                 ? counts[dim]
                 : std::gcd(counts[dim], std::int64_t{mesh.num_devices()});
    }
    paths.cuts.push_back(cuts);
  }
  return paths;
}

}  // namespace

StrategySpace::StrategySpace(const Graph& graph, const Registry& registry,
                             const Machine& machine,
                             const SpaceOptions& options)
    : model_(graph, registry, machine, options), lists_(model_) {
  add_nodes();
  add_edges();
  add_resharders();
  add_buckets();
}

bool StrategySpace::casts(const SpaceEdge& edge) const {
  const SpaceNode& source = nodes_[edge.source];
  return source.kind == SpaceNodeKind::kOp &&
         model_.copies_parameter(graph().node(source.node));
}

// Whether nothing but a cast is between a parameter and the edge.
bool StrategySpace::leaves_parameter(const SpaceEdge& edge) const {
  const SpaceNode& source = nodes_[edge.source];
  if (source.kind == SpaceNodeKind::kRelay) return false;
  const Node* node = &graph().node(source.node);
  if (casts(edge)) {
    const Value& value = graph().value(node->operands[0]);
    if (value.uses.size() > 1) return false;
    node = &graph().node(value.producer);
  }
  return node->kind == NodeKind::kParameter;
}

void StrategySpace::add_nodes() {
  std::unordered_map<std::string, int> times;
  const auto unique = [&](const std::string& name) {
    const int count = ++times[name];
    return count == 1 ? name : str_format("{} ({})", name, count);
  };
  node_of_.assign(graph().nodes().size(), SpaceNodeId());
  relay_of_.assign(graph().values().size(), SpaceNodeId());
  for (const Node& node : graph().nodes()) {
    const auto kind = node.kind == NodeKind::kOp       ? SpaceNodeKind::kOp
                      : node.kind == NodeKind::kOutput ? SpaceNodeKind::kOutput
                                                       : SpaceNodeKind::kSource;
    node_of_[node.id] = SpaceNodeId(nodes_.size());
    nodes_.push_back(
        {kind, node.id, ValueId(), unique(node.name), lists_.of_node(node)});
    for (const ValueId id : node.outputs) {
      const Value& value = graph().value(id);
      const bool whole =
          model_.is_constant(id) || node.kind == NodeKind::kInput;
      if (value.uses.size() < 2 || whole) continue;
      const std::string name =
          str_format("{}:{}", node.name, value.output_index);
      relay_of_[id] = SpaceNodeId(nodes_.size());
      nodes_.push_back({SpaceNodeKind::kRelay, NodeId(), id, unique(name),
                        lists_.of_relay(value)});
    }
  }
}

void StrategySpace::add_edges() {
  for (const Value& value : graph().values()) {
    SpaceNodeId source = node_of_[value.producer];
    int port = value.output_index;
    if (const SpaceNodeId relay = relay_of_[value.id]; !relay.is_none()) {
      edges_.push_back({source, relay, port, 0, value.id, false});
      source = relay;
      port = 0;
    }
    for (const Use& use : value.uses) {
      const Node& node = graph().node(use.node);
      const bool follower = node.kind == NodeKind::kOp && use.operand == 0 &&
                            model_.follows(node);
      edges_.push_back({source, node_of_[use.node], port, use.operand, value.id,
                        follower, model_.recomputation().pairs(value.id)});
    }
  }
}

// Reshards between layouts that occur need not pass by other dims.
void StrategySpace::add_resharders() {
  std::map<TensorKind, SplitDims> splits;
  // Edges of repeated blocks have the same ends.
  std::map<std::tuple<const ConfigList*, int, Shape>, SplitDims> sources;
  std::map<std::tuple<const ConfigList*, int, Shape>, SplitDims> targets;
  for (const SpaceEdge& edge : edges_) {
    const Value& value = graph().value(edge.value);
    const Shape counts = value.meta.counts();
    const ConfigList* source = nodes_[edge.source].configs;
    const ConfigList* target = nodes_[edge.target].configs;
    const auto [at_source, new_source] =
        sources.try_emplace({source, edge.source_port, counts});
    if (new_source) {
      for (const SpaceConfig& config : source->configs) {
        const Port& port = config.outputs[edge.source_port];
        at_source->second.add(port, counts, machine().mesh);
      }
    }
    const auto [at_target, new_target] =
        targets.try_emplace({target, edge.target_port, counts});
    if (new_target) {
      for (const SpaceConfig& config : target->configs) {
        const Port& port = config.inputs[edge.target_port];
        at_target->second.add(port, counts, machine().mesh);
      }
    }
    for (const TensorMeta& meta : {value.meta, model_.gradient_meta(value)}) {
      SplitDims& all = splits[{meta.counts(), meta.unit_bytes()}];
      all.add(at_source->second);
      all.add(at_target->second);
    }
  }
  std::map<ReshardPaths, std::shared_ptr<const TensorResharder>> by_paths;
  for (const auto& [tensor, used] : splits) {
    const auto& [counts, unit_bytes] = tensor;
    auto& resharder =
        by_paths[paths_of(counts, unit_bytes, used, machine().mesh)];
    if (!resharder) {
      resharder = std::make_shared<const TensorResharder>(
          machine().mesh, machine().collectives, machine().device, counts,
          unit_bytes, TensorResharder::kMaxLayouts, used.all, used.uneven);
    }
    resharders_.emplace(tensor, resharder);
  }
}

void StrategySpace::add_buckets() {
  const BucketedCollectives shards(
      machine().collectives,
      {Collective::kAllGather, Collective::kReduceScatter},
      options().shard_bytes);
  const BucketedCollectives together(shards, {Collective::kAllReduce},
                                     options().bucket_bytes);
  const auto add = [&](std::map<TensorKind, MoveCosts>& costs,
                       const TensorMeta& meta, double bucket_bytes) {
    if (real_dtype(meta.dtype) != meta.dtype) return;  // sent by themselves
    const double least = meta.num_bytes() / machine().mesh.num_devices();
    if (least >= bucket_bytes) return;  // no bucket is shared
    const Shape counts = meta.counts();
    costs.try_emplace({counts, meta.unit_bytes()}, machine().mesh, together,
                      machine().device, counts, meta.unit_bytes());
  };
  for (const SpaceEdge& edge : edges_) {
    if (!leaves_parameter(edge)) continue;
    const Value& value = graph().value(edge.value);
    add(gathered_together_, value.meta, options().shard_bytes);
    add(summed_together_, model_.gradient_meta(value), options().bucket_bytes);
  }
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
  return *resharders_.at({meta.counts(), meta.unit_bytes()});
}

SharedResharder StrategySpace::value_resharder(const SpaceEdge& edge) const {
  return shared_resharder(edge, graph().value(edge.value).meta,
                          gathered_together_);
}

SharedResharder StrategySpace::gradient_resharder(const SpaceEdge& edge) const {
  return shared_resharder(edge, model_.gradient_meta(graph().value(edge.value)),
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
