// Pooling over the spatial dims, which are the last one, two or three and are
// not split. What stands before them is.

#include <algorithm>
#include <string_view>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

constexpr double kBytesPerIndex = 8;

// What is computed, which decides what autograd keeps.
enum class Pooling { kAverage, kAdaptiveAverage, kMax };

void add_saved(RuleBuilder& rule, Pooling pooling, int spatial,
               const std::vector<int>& factors) {
  const auto& out = rule.output_shape(0);
  // To one element it is a mean, which keeps nothing.
  if (pooling == Pooling::kAdaptiveAverage &&
      std::all_of(out.end() - spatial, out.end(),
                  [](std::int64_t size) { return size == 1; })) {
    return;
  }
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
    factors.push_back(rule.factor(fmt::format("d{}", dim), shape[dim]));
    rule.bind_operand(0, dim, factors.back());
    for (int out = 0; out < rule.num_outputs(); ++out) {
      rule.bind_output(out, dim, factors.back());
    }
  }
  const double elements =
      static_cast<double>(graph.operand(node, 0).meta.num_elements());
  rule.flops(elements, elements);
  if (pooling != Pooling::kMax) rule.linear_in({0});
  if (graph.output(node, 0).requires_grad) {
    add_saved(rule, pooling, spatial, factors);
  }
  return rule.take();
}

}  // namespace

void register_pooling(Registry& registry) {
  for (int spatial = 1; spatial <= 3; ++spatial) {
    const auto add = [&](std::string_view name, Pooling pooling) {
      registry.add(fmt::format("aten.{}.default", name),
                   {[=](const Graph& graph, const Node& node) {
                      return pooling_rule(graph, node, spatial, pooling);
                    },
                    {}});
    };
    add(fmt::format("avg_pool{}d", spatial), Pooling::kAverage);
    add(fmt::format("adaptive_avg_pool{}d", spatial),
        Pooling::kAdaptiveAverage);
    add(fmt::format("max_pool{}d", spatial), Pooling::kMax);
    add(fmt::format("max_pool{}d_with_indices", spatial), Pooling::kMax);
    add(fmt::format("adaptive_max_pool{}d", spatial), Pooling::kMax);
  }
}

}  // namespace tensoropt
