// Batch normalisation of [batch, channels, ...]. In training the statistics are
// those of the whole batch, however it is split, and the running statistics are
// buffers that every rank updates whole. Or they are those of groups of rows
// (tensoropt::batch_norm_groups): then the batch is split between groups, every
// rank moves running statistics by its own, and these are averaged after
// forward. In evaluation it is element-wise.

#include <algorithm>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

constexpr int kBatch = 0;
constexpr int kChannel = 1;
constexpr int kFirstSpatial = 2;  // the factor and the dim
constexpr double kFlopsPerElement = 8;
constexpr double kSavedPerChannel = 2 * 4;  // mean and 1 / deviation

void bind_dim(RuleBuilder& rule, int dim, int factor) {
  rule.bind_operand(0, dim, factor);
  rule.bind_output(0, dim, factor);
}

// Batch and channels; an operand is the input, or one number per channel. Of
// the batch so many parts have statistics of their own.
RuleBuilder common_rule(const Graph& graph, const Node& node, FactorKind batch,
                        const std::vector<const char*>& per_channel,
                        std::int64_t groups = 1) {
  RuleBuilder rule(graph, node);
  const auto& shape = rule.operand_shape(0);
  bind_dim(rule, 0, rule.factor("b", shape[0], batch));
  bind_dim(rule, 1, rule.factor("c", shape[1]));
  for (const char* name : per_channel) {
    const int operand = node.operand_index(name);
    if (operand >= 0) rule.bind_operand(operand, 0, kChannel);
  }
  if (graph.output(node, 0).requires_grad) {
    rule.save_operand(0);
    if (node.operand_index("weight") >= 0) rule.save_operand(1);
    std::vector<int> divided_by{kChannel};
    if (groups > 1) divided_by.push_back(kBatch);
    rule.saves_extra(kSavedPerChannel * static_cast<double>(shape[1] * groups),
                     std::move(divided_by));
  }
  const double flops = kFlopsPerElement * rule.output_elements();
  rule.flops(flops, 2 * flops);
  return rule;
}

// Two sums for each channel: over the batch in both passes, and of all channels
// for running statistics, which are whole. The one over the batch in forward
// gathers, and that of channels whose parts differ reduces; so few bytes take
// the same time.
void add_statistics(RuleBuilder& rule, bool requires_grad, bool tracked) {
  std::vector<int> over{kBatch};
  const auto rank = static_cast<int>(rule.operand_shape(0).size());
  for (int dim = kFirstSpatial; dim < rank; ++dim) over.push_back(dim);
  const double bytes =
      kSavedPerChannel * static_cast<double>(rule.operand_shape(0)[1]);
  rule.runs_collective({Collective::kAllReduce, over, bytes, {kChannel}});
  if (requires_grad) {
    rule.runs_collective(
        {Collective::kAllReduce, over, bytes, {kChannel}, Pass::kBackward});
  }
  if (tracked)
    rule.runs_collective({Collective::kAllGather, {kChannel}, bytes, {}});
}

Rule batch_norm_rule(const Graph& graph, const Node& node) {
  const auto rank = graph.operand(node, 0).meta.rank();
  if (node.bool_argument("training", false)) {
    RuleBuilder rule =
        common_rule(graph, node, FactorKind::kCombined, {"weight", "bias"});
    for (int dim = kFirstSpatial; dim < rank; ++dim) {
      bind_dim(rule, dim,
               rule.spatial_factor(str_format("d{}", dim),
                                   rule.operand_shape(0)[dim],
                                   FactorKind::kCombined));
    }
    const bool tracked = node.operand_index("running_mean") >= 0;
    if (tracked) rule.not_repeatable();
    add_statistics(rule, graph.output(node, 0).requires_grad, tracked);
    return rule.take();
  }
  RuleBuilder rule =
      common_rule(graph, node, FactorKind::kDefault,
                  {"weight", "bias", "running_mean", "running_var"});
  for (int dim = kFirstSpatial; dim < rank; ++dim) {
    bind_dim(rule, dim,
             rule.factor(str_format("d{}", dim), rule.operand_shape(0)[dim]));
  }
  return rule.take();
}

// Groups are cut as torch.chunk cuts them: parts of the batch have whole ones
// if all are equal.
Rule batch_norm_groups_rule(const Graph& graph, const Node& node) {
  const std::int64_t groups = node.int_argument("groups", 1);
  RuleBuilder rule = common_rule(graph, node, FactorKind::kDefault,
                                 {"weight", "bias"}, groups);
  const std::int64_t rows = rule.operand_shape(0)[0];
  rule.keep_runs(kBatch, rows % groups == 0 ? rows / groups : rows);
  if (node.operand_index("running_mean") >= 0) rule.not_repeatable();
  return rule.take();
}

LocalForm batch_norm_groups_local(const Graph& graph, const Node& node,
                                  const LocalContext& context) {
  const AxisSet batch = context.factor_axes[kBatch];
  const AxisSet channels = context.factor_axes[kChannel];
  if ((batch | channels) == 0) return {};
  const DimRange own =
      context.range(kChannel, graph.operand(node, 0).meta.shape[1]);
  LocalForm form;
  form.arguments = {
      {"groups", node.int_argument("groups", 1) / context.parts(kBatch)},
      {"channel_begin", own.begin}};
  for (const char* name : {"running_mean", "running_var"}) {
    const int operand = node.operand_index(name);
    if (operand < 0) continue;
    form.averaged.push_back({operand, own, batch | channels, channels});
  }
  return form;
}

// How many samples the ranks of a group have; empty if all have as many.
Shape samples_of(const LocalContext& context, AxisSet group,
                 std::int64_t batch) {
  Shape samples;
  LocalContext other = context;
  for (const int rank : context.mesh.group_of(group, context.rank)) {
    other.rank = rank;
    samples.push_back(other.range(kBatch, batch).size());
  }
  const bool equal =
      std::equal(samples.begin() + 1, samples.end(), samples.begin());
  return equal ? Shape{} : samples;
}

// The call itself will do where a rank has all that it computes.
LocalForm batch_norm_local(const Graph& graph, const Node& node,
                           const LocalContext& context) {
  AxisSet batch = context.factor_axes[kBatch];
  for (std::size_t f = kFirstSpatial; f < context.factor_axes.size(); ++f) {
    batch |= context.factor_axes[f];
  }
  const bool tracked = node.operand_index("running_mean") >= 0;
  const AxisSet channels = tracked ? context.factor_axes[kChannel] : 0;
  if (!node.bool_argument("training", false) || (batch | channels) == 0) {
    return {};
  }
  LocalForm form;
  form.target = "tensoropt.batch_norm_sharded.default";
  form.operands = {"input", "weight", "bias", "running_mean", "running_var"};
  const Shape& shape = graph.operand(node, 0).meta.shape;
  form.extra = {node.double_argument("momentum", 0.1),
                node.double_argument("eps", 1e-5),
                context.range(kChannel, shape[1]).begin,
                samples_of(context, batch, shape[0])};
  form.groups = {batch, channels};
  return form;
}

}  // namespace

void register_batch_norm(Registry& registry) {
  registry.add("aten.batch_norm.default", {batch_norm_rule, batch_norm_local});
  registry.add("tensoropt.batch_norm_groups.default",
               {batch_norm_groups_rule, batch_norm_groups_local});
}

}  // namespace tensoropt
