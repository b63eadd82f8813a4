// Pooling over the spatial dims, which are the last one, two or three. What
// stands before them is split; they are where neighbours can lend borders, or
// where the mean of all is asked for.

#include <algorithm>
#include <limits>
#include <string_view>

#include "rules/builder.h"
#include "rules/registry.h"
#include "rules/windows.h"

namespace tensoropt {

namespace {

constexpr double kBytesPerIndex = 8;

// What is computed, which decides what autograd keeps.
enum class Pooling { kAverage, kAdaptiveAverage, kMax };

// To one element for each channel.
bool is_mean(const Graph& graph, const Node& node, int spatial,
             Pooling pooling) {
  const auto& out = graph.output(node, 0).meta.shape;
  return pooling == Pooling::kAdaptiveAverage &&
         std::all_of(out.end() - spatial, out.end(),
                     [](std::int64_t size) { return size == 1; });
}

// Whether neighbours can lend borders: a batch, whole windows, no positions of
// maxima, and no average that leaves out the padding.
bool has_windows(const Graph& graph, const Node& node, int spatial,
                 Pooling pooling) {
  if (pooling == Pooling::kAdaptiveAverage || node.outputs.size() > 1 ||
      graph.operand(node, 0).meta.rank() != spatial + kFirstSpatialDim ||
      node.ints_argument("kernel_size").empty() ||
      node.bool_argument("ceil_mode", false)) {
    return false;
  }
  const auto padding = node.ints_argument("padding");
  const bool padded = std::any_of(padding.begin(), padding.end(),
                                  [](std::int64_t size) { return size > 0; });
  return pooling == Pooling::kMax || !padded ||
         (node.bool_argument("count_include_pad", true) &&
          node.find("divisor_override") == nullptr);
}

std::vector<Window> pooling_windows(const Node& node, int spatial) {
  auto kernel = node.ints_argument("kernel_size");
  kernel.resize(spatial, kernel.front());
  return windows_of(node, kernel);
}

void add_saved(RuleBuilder& rule, Pooling pooling,
               const std::vector<int>& factors) {
  rule.save_operand(0);
  if (pooling != Pooling::kMax) return;
  // Where the maxima were found, as an output or out of sight.
  if (rule.num_outputs() > 1) {
    rule.save_output(1);
  } else {
    rule.saves_extra(kBytesPerIndex * rule.output_elements(), factors);
  }
}

Rule pooling_rule(const Graph& graph, const Node& node, int spatial,
                  Pooling pooling) {
  RuleBuilder rule(graph, node);
  const auto& shape = rule.operand_shape(0);
  std::vector<int> factors;
  for (int dim = 0; dim < static_cast<int>(shape.size()) - spatial; ++dim) {
    factors.push_back(rule.factor(str_format("d{}", dim), shape[dim]));
    rule.bind_operand(0, dim, factors.back());
    for (int out = 0; out < rule.num_outputs(); ++out) {
      rule.bind_output(out, dim, factors.back());
    }
  }
  const bool mean = is_mean(graph, node, spatial, pooling);
  if (mean) {
    for (int dim = static_cast<int>(factors.size());
         dim < static_cast<int>(shape.size()); ++dim) {
      rule.bind_operand(
          0, dim, rule.spatial_factor(str_format("d{}", dim), shape[dim]));
    }
  } else if (has_windows(graph, node, spatial, pooling)) {
    const int first = bind_windows(rule, pooling_windows(node, spatial));
    for (int i = 0; i < spatial; ++i) factors.push_back(first + i);
  }
  const double elements =
      static_cast<double>(graph.operand(node, 0).meta.num_elements());
  rule.flops(elements, elements);
  if (pooling != Pooling::kMax) rule.linear_in({0});
  // A mean keeps nothing.
  if (graph.output(node, 0).requires_grad && !mean) {
    add_saved(rule, pooling, factors);
  }
  return rule.take();
}

LocalForm pooling_local(const Graph& graph, const Node& node,
                        const LocalContext& context, int spatial,
                        Pooling pooling) {
  LocalForm form;
  if (is_mean(graph, node, spatial, pooling)) {
    const auto factors = static_cast<int>(context.factor_axes.size());
    form.scale = context.share_from(factors - spatial);
  } else if (has_windows(graph, node, spatial, pooling)) {
    const double padding =
        pooling == Pooling::kMax ? -std::numeric_limits<double>::infinity() : 0;
    add_halos(form, pooling_windows(node, spatial), kFirstSpatialDim, padding,
              context);
  }
  return form;
}

}  // namespace

void register_pooling(Registry& registry) {
  for (int spatial = 1; spatial <= 3; ++spatial) {
    const auto add = [&](std::string_view name, Pooling pooling) {
      registry.add(str_format("aten.{}.default", name),
                   {[=](const Graph& graph, const Node& node) {
                      return pooling_rule(graph, node, spatial, pooling);
                    },
                    [=](const Graph& graph, const Node& node,
                        const LocalContext& context) {
                      return pooling_local(graph, node, context, spatial,
                                           pooling);
                    }});
    };
    add(str_format("avg_pool{}d", spatial), Pooling::kAverage);
    add(str_format("adaptive_avg_pool{}d", spatial), Pooling::kAdaptiveAverage);
    add(str_format("max_pool{}d", spatial), Pooling::kMax);
    add(str_format("max_pool{}d_with_indices", spatial), Pooling::kMax);
    add(str_format("adaptive_max_pool{}d", spatial), Pooling::kMax);
  }
}

}  // namespace tensoropt
