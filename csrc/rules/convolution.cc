// Convolutions: batch, output channels and input channels are split, or whole
// groups of channels; of those that are not transposed also spatial dims.

#include "rules/builder.h"
#include "rules/registry.h"
#include "rules/windows.h"

namespace tensoropt {

namespace {

constexpr int kGroup = 1;  // the factor of groups, after the batch

// Where a weight has its channels: [out, in / groups, ...], transposed
// [in, out / groups, ...]. Dim 0 counts those of all groups.
struct WeightDims {
  int in;
  int out;
};

// After batch and groups, or batch, n and k.
int first_spatial_factor(const Node& node) {
  return node.int_argument("groups", 1) > 1 ? 2 : 3;
}

// Of a call on a batch that is not transposed, with its padding as numbers.
bool has_windows(const Graph& graph, const Node& node) {
  const auto rank = graph.operand(node, 0).meta.shape.size();
  const Literal* padding = node.find("padding");
  return rank == graph.operand(node, 1).meta.shape.size() &&
         !node.bool_argument("transposed", false) && padding != nullptr &&
         std::holds_alternative<std::vector<std::int64_t>>(*padding);
}

std::vector<Window> convolution_windows(const Graph& graph, const Node& node) {
  const auto& weight = graph.operand(node, 1).meta.shape;
  return windows_of(node, {weight.begin() + kFirstSpatialDim, weight.end()});
}

constexpr WeightDims kDirect{1, 0};
constexpr WeightDims kTransposed{0, 1};

// One factor for the channels of input and output: a block of groups is a block
// of both.
void bind_groups(RuleBuilder& rule, std::int64_t groups, int channel_dim) {
  const int group = rule.factor("g", groups);
  rule.bind_operand(0, channel_dim, group);
  rule.bind_operand(1, 0, group);
  rule.bind_output(0, channel_dim, group);
  if (rule.num_operands() > 2) rule.bind_operand(2, 0, group);
}

void bind_channels(RuleBuilder& rule, WeightDims dims, int channel_dim) {
  const auto& weight = rule.operand_shape(1);
  const int n = rule.factor("n", weight[dims.out]);
  const int k = rule.factor("k", weight[dims.in]);
  rule.bind_operand(0, channel_dim, k);
  rule.bind_operand(1, dims.in, k);
  rule.bind_operand(1, dims.out, n);
  rule.bind_output(0, channel_dim, n);
  if (rule.num_operands() > 2) {
    rule.bind_operand(2, 0, n);
    rule.additive(2);
  }
}

// [b, k, ...] * [n, k, ...] (+ [n]) -> [b, n, ...]; without a batch [k, ...].
Rule convolution_rule(const Graph& graph, const Node& node, WeightDims dims) {
  RuleBuilder rule(graph, node);
  const auto& weight = rule.operand_shape(1);
  const bool batched = rule.operand_shape(0).size() == weight.size();
  const int batch = rule.factor("b", batched ? rule.operand_shape(0)[0] : 1);
  if (batched) {
    rule.bind_operand(0, 0, batch);
    rule.bind_output(0, 0, batch);
  }
  const std::int64_t groups = node.int_argument("groups", 1);
  if (groups > 1) {
    bind_groups(rule, groups, batched ? 1 : 0);
  } else {
    bind_channels(rule, dims, batched ? 1 : 0);
  }
  const bool direct = dims.out == kDirect.out;
  if (direct && has_windows(graph, node)) {
    const int first = bind_windows(rule, convolution_windows(graph, node));
    TO_ASSERT(first == first_spatial_factor(node), "factors of '{}'",
              node.name);
  }
  // Each output element of a convolution, or input element of a transposed one,
  // meets one filter: all dims of the weight but the first.
  double flops = 2 * (direct ? rule.output_elements()
                             : static_cast<double>(
                                   graph.operand(node, 0).meta.num_elements()));
  for (std::size_t dim = 1; dim < weight.size(); ++dim) {
    flops *= static_cast<double>(weight[dim]);
  }
  rule.save_product(0, 1);
  rule.contraction(flops, 0, 1);
  return rule.take();
}

LocalForm convolution_local(const Graph& graph, const Node& node,
                            const LocalContext& context) {
  const std::int64_t groups = node.int_argument("groups", 1);
  LocalForm form;
  const int spatial = first_spatial_factor(node);
  if (spatial < static_cast<int>(context.factor_axes.size())) {
    add_halos(form, convolution_windows(graph, node), spatial, 0, context);
  }
  if (groups > 1) {
    const DimRange own = context.range(kGroup, groups);
    form.arguments.push_back({"groups", Literal(own.size())});
  }
  return form;
}

void add(Registry& registry, const char* target, WeightDims dims) {
  registry.add(target, {[dims](const Graph& graph, const Node& node) {
                          return convolution_rule(graph, node, dims);
                        },
                        convolution_local});
}

// One operator for all ranks and both directions.
Rule any_convolution_rule(const Graph& graph, const Node& node) {
  return convolution_rule(
      graph, node,
      node.bool_argument("transposed", false) ? kTransposed : kDirect);
}

}  // namespace

void register_convolution(Registry& registry) {
  for (const char* target :
       {"aten.conv1d.default", "aten.conv1d.padding", "aten.conv2d.default",
        "aten.conv2d.padding", "aten.conv3d.default", "aten.conv3d.padding"}) {
    add(registry, target, kDirect);
  }
  for (const char* target :
       {"aten.conv_transpose1d.default", "aten.conv_transpose2d.input",
        "aten.conv_transpose3d.input"}) {
    add(registry, target, kTransposed);
  }
  registry.add("aten.convolution.default",
               {any_convolution_rule, convolution_local});
}

}  // namespace tensoropt
