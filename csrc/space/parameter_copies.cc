#include "space/parameter_copies.h"

#include <algorithm>

namespace tensoropt {

namespace {

// Values that no input reaches, but some parameter does.
std::vector<bool> made_of_parameters(const Graph& graph) {
  std::vector<bool> any(graph.values().size(), false);
  std::vector<bool> only(graph.values().size(), false);
  for (const Node& node : graph.nodes()) {
    bool parameter = node.kind == NodeKind::kParameter;
    bool no_input = node.kind != NodeKind::kInput;
    for (const ValueId operand : node.operands) {
      parameter = parameter || any[operand];
      no_input = no_input && only[operand];
    }
    for (const ValueId id : node.outputs) {
      any[id] = parameter;
      only[id] = no_input;
    }
  }
  for (std::size_t id = 0; id < any.size(); ++id) any[id] = any[id] && only[id];
  return any;
}

bool narrows(const TensorMeta& from, const TensorMeta& to) {
  return is_floating_point(from.dtype) && is_floating_point(to.dtype) &&
         item_size(to.dtype) < item_size(from.dtype);
}

}  // namespace

IndexedVector<ValueId, std::optional<DType>> find_parameter_copies(
    const Graph& graph, const RulesByNode& rules) {
  const std::vector<bool> candidates = made_of_parameters(graph);
  IndexedVector<ValueId, std::optional<DType>> copies(graph.values().size());
  for (const Node& node : graph.nodes()) {
    if (node.kind != NodeKind::kOp || node.operands.empty()) continue;
    const Rule& rule = rules[node.id];
    const ValueId from = node.operands[0];
    for (const ValueId id : node.outputs) {
      if (!candidates[id]) continue;
      const TensorMeta& before = graph.value(from).meta;
      if (rule.alias) {
        copies[id] = copies[from];
      } else if (rule.cast && narrows(before, graph.value(id).meta)) {
        copies[id] = before.dtype;
      }
    }
  }
  return copies;
}

}  // namespace tensoropt
