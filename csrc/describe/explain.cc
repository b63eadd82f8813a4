#include "describe/explain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "common/check.h"
#include "rules/notation.h"

namespace tensoropt {

namespace {

constexpr double kMostToCount = 1 << 20;

// What nodes with one list of configs have in common.
struct Counts {
  std::optional<std::size_t> without_budget;
  std::optional<std::size_t> in_any_order;
  std::vector<UnevenSplit> uneven_splits;
};

// `list(limits, left_out)` lists configs or layouts made of `choices` for each
// axis.
template <typename List>
Counts count(const StrategySpace& space, ConfigSpace config_space,
             std::size_t choices, const List& list,
             const std::function<Factor(int)>& factor_at) {
  Counts counts;
  const int axes = space.machine().mesh.num_axes();
  const bool countable = std::pow(choices, axes) <= kMostToCount;
  UnevenSplits uneven;
  // Divisibility alone shows with few runs, too.
  const ConfigLimits limits{config_space, countable ? axes : 2};
  const std::size_t listed = list(limits, &uneven);
  if (countable) {
    counts.without_budget = listed;
    counts.in_any_order = list({ConfigSpace::kFull, axes}, nullptr);
  }
  for (const auto& [index, parts] : uneven) {
    const Factor factor = factor_at(index);
    if (factor.size > 1) {
      counts.uneven_splits.push_back(
          {factor.name, factor.count(), parts, !factor.uneven});
    }
  }
  return counts;
}

Counts count_op(const StrategySpace& space, const Rule& rule) {
  return count(
      space, space.options().config_space,
      rule.factors.size() + rule.linear_sets.size() + 1,
      [&](const ConfigLimits& limits, UnevenSplits* left_out) {
        return enumerate_configs(rule, space.machine().mesh, limits, left_out)
            .size();
      },
      [&](int factor) { return rule.factors[factor]; });
}

Counts count_parameter(const StrategySpace& space, const Value& value) {
  const Shape shape = value.meta.counts();
  const DimSet uneven = space.model().uneven_dims_of(value);
  return count(
      space, ConfigSpace::kFull, shape.size() + 1,
      [&](const ConfigLimits& limits, UnevenSplits* left_out) {
        return enumerate_layouts(shape, space.machine().mesh, limits, uneven,
                                 left_out)
            .size();
      },
      [&](int dim) {
        return Factor{.name = str_format("dim {}", dim),
                      .size = shape[dim],
                      .uneven = (uneven >> dim & 1) != 0};
      });
}

// Explains nodes one by one; remembers what lists have in common.
class Explainer {
 public:
  Explainer(const StrategySpace& space, const StepShape& shape)
      : space_(space), step_(shape, space.machine().device) {
    for (const Exclusion& exclusion : space.model().exclusions()) {
      exclusions_[exclusion.node].push_back(exclusion);
    }
  }

  std::optional<NodeExplanation> explain(SpaceNodeId space_node) {
    const SpaceNode& node = space_.nodes()[space_node];
    NodeExplanation explanation;
    explanation.space_node = space_node;
    const auto& configs = node.configs->configs;
    explanation.num_configs = std::count_if(
        configs.begin(), configs.end(), [](const SpaceConfig& config) {
          return config.saved != Saved::kRemade;
        });
    explanation.max_runs = node.configs->max_runs;
    if (node.kind == SpaceNodeKind::kOp) {
      explain_op(node, explanation);
    } else if (node.kind == SpaceNodeKind::kSource &&
               graph().node(node.node).kind == NodeKind::kParameter) {
      explain_parameter(node, explanation);
    } else if (node.kind != SpaceNodeKind::kRelay || !node.configs->max_runs) {
      return std::nullopt;
    }
    return explanation;
  }

 private:
  const Graph& graph() const { return space_.graph(); }
  int num_devices() const { return space_.machine().mesh.num_devices(); }

  template <typename Count>
  void add_counts(const SpaceNode& node, NodeExplanation& explanation,
                  const Count& count_list) {
    auto known = counts_.find(node.configs);
    if (known == counts_.end()) {
      known = counts_.emplace(node.configs, count_list()).first;
    }
    explanation.num_without_budget = known->second.without_budget;
    explanation.num_in_any_order = known->second.in_any_order;
    explanation.uneven_splits = known->second.uneven_splits;
  }

  void explain_op(const SpaceNode& node, NodeExplanation& explanation) {
    const Rule& rule = space_.rule(node.node);
    explanation.rule = to_string(rule);
    explanation.exclusions = exclusions_[node.node];
    explanation.flops = rule.forward_flops;
    if (has_backward(node)) explanation.flops += rule.backward_flops;
    add_counts(node, explanation, [&] { return count_op(space_, rule); });
    const auto parts_of = [&](const SpaceConfig& config) {
      AxisSet split = 0;
      for (const AxisSet axes : factor_axes(rule, config.uses)) split |= axes;
      return space_.machine().mesh.size_of(split);
    };
    const double launches_s = step_.shape().micro_batches * rule.launches *
                              (has_backward(node) ? 2 : 1) *
                              space_.machine().device.launch_overhead_s;
    add_costs(node, explanation, parts_of, rule.view ? 0 : launches_s);
  }

  void explain_parameter(const SpaceNode& node, NodeExplanation& explanation) {
    const Value& value = graph().output(graph().node(node.node), 0);
    const Mesh& mesh = space_.machine().mesh;
    add_counts(node, explanation,
               [&] { return count_parameter(space_, value); });
    const auto parts_of = [&](const SpaceConfig& config) {
      return num_shards(config.outputs[0].value, mesh);
    };
    // The update of a tensor without elements is all launches.
    const CostParts launches =
        parameter_cost({{0}, value.meta.dtype}, value.requires_grad,
                       Layout::replicated(mesh.num_axes()), mesh,
                       space_.machine().device, space_.options().training);
    add_costs(node, explanation, parts_of, launches.step_s);
  }

  bool has_backward(const SpaceNode& node) const {
    return graph().has_backward(graph().node(node.node));
  }

  // What a config keeps for backward, or for good.
  double memory_bytes(const SpaceNode& node, std::size_t config) const {
    double bytes = step_.memory_bytes(node.configs->costs[config]);
    if (node.kind != SpaceNodeKind::kOp || !has_backward(node)) return bytes;
    const Node& op = graph().node(node.node);
    const Rule& rule = space_.rule(node.node);
    for (std::size_t i = 0; i < op.operands.size(); ++i) {
      if (!rule.operands[i].saved) continue;
      bytes += local_bytes(graph().operand(op, static_cast<int>(i)).meta,
                           node.configs->configs[config].inputs[i].value,
                           space_.machine().mesh);
    }
    return bytes;
  }

  template <typename Parts>
  void add_costs(const SpaceNode& node, NodeExplanation& explanation,
                 const Parts& parts_of, double launches_s) const {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    explanation.time_s = explanation.memory_bytes = kNone;
    const ConfigList& list = *node.configs;
    for (std::size_t i = 0; i < list.configs.size(); ++i) {
      const double time_s = step_.time_s(list.costs[i]);
      const double bytes = memory_bytes(node, i);
      const std::int64_t parts = parts_of(list.configs[i]);
      explanation.parts = std::max(explanation.parts, parts);
      explanation.time_s = std::min(explanation.time_s, time_s);
      explanation.memory_bytes = std::min(explanation.memory_bytes, bytes);
      if (parts == 1) {
        explanation.even_time_s =
            launches_s + (time_s - launches_s) / num_devices();
        explanation.even_memory_bytes = bytes / num_devices();
      }
    }
  }

  const StrategySpace& space_;
  const Projection step_;
  std::map<NodeId, Exclusions> exclusions_;
  std::map<const ConfigList*, Counts> counts_;
};

}  // namespace

std::vector<NodeExplanation> explain(const StrategySpace& space,
                                     const StepShape& shape) {
  Explainer explainer(space, shape);
  std::vector<NodeExplanation> explanations;
  for (std::size_t i = 0; i < space.nodes().size(); ++i) {
    if (auto node = explainer.explain(SpaceNodeId(i))) {
      explanations.push_back(std::move(*node));
    }
  }
  return explanations;
}

}  // namespace tensoropt
