#include "space/fusion.h"

#include <algorithm>

namespace tensoropt {

namespace {

// How many operators that are not fused lie at most before each value. Two that
// fuse, one of which takes what the other makes, are of one kernel if they are
// at the same depth: then nothing else is between, on no way.
class Depths {
 public:
  Depths(const Graph& graph, const RulesByNode& rules)
      : graph_(graph), rules_(rules), of_node_(graph.nodes().size(), 0) {
    for (const Node& node : graph.nodes()) of_node_[node.id] = depth(node);
  }

  // Whether both ends are in one kernel; views between them do not count.
  bool same_kernel(ValueId value, NodeId consumer) const {
    const NodeId maker = maker_of(value);
    return fuses(maker) && fuses(consumer) &&
           of_node_[maker] == of_node_[consumer];
  }

  // Whether all that take the value are in the kernel that makes it.
  bool stays(ValueId value, NodeId maker) const {
    const auto& uses = graph_.value(value).uses;
    return !uses.empty() &&
           std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
             if (is_view(use.node)) {
               const auto& outputs = graph_.node(use.node).outputs;
               return std::all_of(
                   outputs.begin(), outputs.end(),
                   [&](ValueId output) { return stays(output, maker); });
             }
             return fuses(use.node) && of_node_[use.node] == of_node_[maker];
           });
  }

 private:
  bool is_op(NodeId node) const {
    return graph_.node(node).kind == NodeKind::kOp;
  }
  bool is_view(NodeId node) const { return is_op(node) && rules_[node].view; }
  bool fuses(NodeId node) const { return is_op(node) && rules_[node].fuses; }

  NodeId maker_of(ValueId value) const {
    NodeId maker = graph_.value(value).producer;
    while (is_view(maker) && !graph_.node(maker).operands.empty()) {
      maker = graph_.value(graph_.node(maker).operands[0]).producer;
    }
    return maker;
  }

  int depth(const Node& node) const {
    int depth = 0;
    for (const ValueId id : node.operands) {
      depth = std::max(depth, of_node_[graph_.value(id).producer]);
    }
    const bool counts =
        node.kind == NodeKind::kOp && !fuses(node.id) && !is_view(node.id);
    return counts ? depth + 1 : depth;
  }

  const Graph& graph_;
  const RulesByNode& rules_;
  IndexedVector<NodeId, int> of_node_;
};

}  // namespace

void fuse(const Graph& graph, RulesByNode& rules) {
  const Depths depths(graph, rules);
  for (const Node& node : graph.nodes()) {
    if (node.kind != NodeKind::kOp || !rules[node.id].fuses) continue;
    Rule& rule = rules[node.id];
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      if (!depths.same_kernel(node.operands[i], node.id)) continue;
      rule.operands[i].moves = 0;
      rule.launches = 0;
    }
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      if (depths.stays(node.outputs[i], node.id)) rule.outputs[i].moves = 0;
    }
  }
}

}  // namespace tensoropt
