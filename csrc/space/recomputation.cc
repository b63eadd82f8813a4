#include "space/recomputation.h"

#include <algorithm>

namespace tensoropt {

namespace {

// The most products with weights in a row: in a chain, in a segment before it
// may end (an attention and a feed-forward layer of a Transformer), and in one
// whose values may be recomputed.
constexpr int kChainProducts = 2;
constexpr int kSegmentProducts = 4;
constexpr int kMostProducts = 8;

// A value that lives through more nodes than this, and than this share of all,
// is no part of what one segment hands to the next: an encoder's output.
constexpr int kLongLife = 64;
constexpr double kLongShare = 1.0 / 8;

// What a chain recomputes.
enum class Way { kNothing, kSelective, kFull, kWithOutput };
constexpr Way kWays[] = {Way::kNothing, Way::kSelective, Way::kFull,
                         Way::kWithOutput};

bool has_factor(const TensorRule& tensor, int factor) {
  return std::find(tensor.dims.begin(), tensor.dims.end(), factor) !=
         tensor.dims.end();
}

// Sums over what two operands have in common.
bool is_product(const Rule& rule) {
  for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
    const auto has = [&](const TensorRule& tensor) {
      return has_factor(tensor, f);
    };
    if (std::count_if(rule.operands.begin(), rule.operands.end(), has) > 1 &&
        std::none_of(rule.outputs.begin(), rule.outputs.end(), has)) {
      return true;
    }
  }
  return false;
}

bool saves_output(const Rule& rule) {
  return std::any_of(rule.outputs.begin(), rule.outputs.end(),
                     [](const TensorRule& output) { return output.saved; });
}

class Chains {
 public:
  Chains(const Graph& graph, const RulesByNode& rules,
         const Recomputation::Predicate& may_repeat)
      : graph_(graph), rules_(rules) {
    const std::size_t count = graph.nodes().size();
    may_repeat_.assign(count, false);
    weighs_.assign(count, false);
    for (const Node& node : graph.nodes()) {
      if (node.kind != NodeKind::kOp) continue;
      may_repeat_[node.id] = may_repeat(node);
      weighs_[node.id] = is_product(rules[node.id]) && has_weight(node);
    }
    join();
  }

  // Whether the producer of a value and its only consumer are in one chain.
  bool joins(ValueId value) const { return joins_[value]; }

  // Whether a value leaves its chain for several operators, or for one that is
  // in another chain only since there are enough products in this one.
  bool may_leave(ValueId value) const {
    const std::vector<Use>& uses = graph_.value(value).uses;
    return uses.size() > 1 ||
           (uses.size() == 1 && !joins_[value] && may_repeat_[uses[0].node]);
  }

  // The operators by chain, in order.
  std::vector<std::vector<NodeId>> chains() const {
    std::vector<std::vector<NodeId>> chains(graph_.nodes().size());
    for (const Node& node : graph_.nodes()) {
      if (node.kind == NodeKind::kOp) {
        chains[chain_of(node.id)].push_back(node.id);
      }
    }
    std::erase_if(chains, [](const auto& chain) { return chain.empty(); });
    return chains;
  }

  // By node: who of a chain runs again.
  IndexedVector<NodeId, bool> runs_again(const std::vector<NodeId>& chain,
                                         Way way) const {
    IndexedVector<NodeId, bool> again(graph_.nodes().size(), false);
    if (way == Way::kNothing) return again;
    for (auto id = chain.rbegin(); id != chain.rend(); ++id) {
      const Node& node = graph_.node(*id);
      const bool wanted = *id == chain.back() ? way == Way::kWithOutput
                                              : is_wanted(node, again);
      const bool kept = way == Way::kSelective && is_kept_by_selective(node);
      again[*id] = wanted && may_repeat_[*id] && !kept;
    }
    return again;
  }

  // The longest row of products with weights up to each value.
  IndexedVector<ValueId, int> products() const {
    IndexedVector<ValueId, int> by_value(graph_.values().size(), 0);
    for (const Node& node : graph_.nodes()) {
      int most = 0;
      for (const ValueId id : node.operands) {
        most = std::max(most, by_value[id]);
      }
      for (const ValueId id : node.outputs) {
        by_value[id] = most + (weighs_[node.id] ? 1 : 0);
      }
    }
    return by_value;
  }

 private:
  bool has_weight(const Node& node) const {
    return std::any_of(
        node.operands.begin(), node.operands.end(), [&](ValueId id) {
          const Value* value = &graph_.value(id);
          const Node* made_by = &graph_.node(value->producer);
          while (made_by->kind == NodeKind::kOp &&
                 made_by->operands.size() == 1) {
            made_by = &graph_.node(graph_.operand(*made_by, 0).producer);
          }
          return made_by->kind == NodeKind::kParameter &&
                 value->meta.rank() > 1;
        });
  }

  void join() {
    joins_.assign(graph_.values().size(), false);
    parent_.resize(graph_.nodes().size());
    for (const Node& node : graph_.nodes()) parent_[node.id] = node.id;
    IndexedVector<NodeId, int> products(graph_.nodes().size(), 0);
    for (const Node& node : graph_.nodes()) {
      if (node.kind != NodeKind::kOp || !may_repeat_[node.id]) continue;
      const int own = weighs_[node.id] ? 1 : 0;
      products[node.id] = own;
      for (const ValueId id : node.operands) {
        const NodeId before = graph_.value(id).producer;
        const int together = products[before] + own;
        if (!may_repeat_[before] || graph_.value(id).uses.size() > 1 ||
            together > kChainProducts) {
          continue;
        }
        joins_[id] = true;
        products[node.id] = std::max(products[node.id], together);
        parent_[chain_of(before)] = chain_of(node.id);
      }
    }
  }

  NodeId chain_of(NodeId node) const {
    while (parent_[node] != node) node = parent_[node];
    return node;
  }

  // By its own backward, or by what comes after it in the chain.
  bool is_wanted(const Node& node,
                 const IndexedVector<NodeId, bool>& again) const {
    const Rule& rule = rules_[node.id];
    if (graph_.has_backward(node) &&
        (saves_output(rule) || !rule.extra_saved.empty())) {
      return true;
    }
    for (const ValueId id : node.outputs) {
      for (const Use& use : graph_.value(id).uses) {
        if (!joins_[id]) continue;
        const Node& user = graph_.node(use.node);
        const bool saved = rules_[use.node].operands[use.operand].saved &&
                           graph_.has_backward(user);
        if (saved || again[use.node]) return true;
      }
    }
    return false;
  }

  bool is_kept_by_selective(const Node& node) const {
    const Rule& rule = rules_[node.id];
    return is_product(rule) && (weighs_[node.id] || saves_output(rule));
  }

  const Graph& graph_;
  const RulesByNode& rules_;
  IndexedVector<NodeId, bool> may_repeat_;
  IndexedVector<NodeId, bool> weighs_;  // a product with a weight
  IndexedVector<ValueId, bool> joins_;
  IndexedVector<NodeId, NodeId> parent_;
};

// Which values are inside of a segment: not at its end, not of a long life, and
// the segment is not too long.
class Segments {
 public:
  Segments(const Graph& graph, const IndexedVector<ValueId, int>& products)
      : inside_(graph.values().size(), false),
        is_long_(graph.values().size(), false) {
    const IndexedVector<NodeId, ValueId> narrow = narrow_values(graph);
    int first = 0;  // products before the segment
    std::vector<ValueId> members;
    const auto end = [&](int last) {
      for (const ValueId id : members) {
        inside_[id] = !is_long_[id] && last - first <= kMostProducts;
      }
      members.clear();
      first = last;
    };
    int most = 0;
    for (const Node& node : graph.nodes()) {
      for (const ValueId id : node.outputs) {
        most = std::max(most, products[id]);
        const bool ends =
            narrow[node.id] == id && products[id] - first >= kSegmentProducts;
        if (ends) {
          end(products[id]);
        } else {
          members.push_back(id);
        }
      }
    }
    end(most);
  }

  bool has_inside(ValueId value) const { return inside_[value]; }

 private:
  // By node: the one value that what comes later has of this node and those
  // before it; none if there are several.
  IndexedVector<NodeId, ValueId> narrow_values(const Graph& graph) {
    const int count = static_cast<int>(graph.nodes().size());
    const double longest = std::max<double>(kLongLife, kLongShare * count);
    IndexedVector<NodeId, std::vector<ValueId>> ends(count);
    IndexedVector<NodeId, ValueId> narrow(count);
    int living = 0;
    std::int64_t sum = 0;  // of their ids: the id itself if one lives
    for (const Node& node : graph.nodes()) {
      for (const ValueId id : ends[node.id]) {
        --living;
        sum -= id;
      }
      for (const ValueId id : node.outputs) {
        const Value& value = graph.value(id);
        if (!value.requires_grad || value.uses.empty()) continue;
        if (node.kind != NodeKind::kOp) continue;
        NodeId last = node.id;
        for (const Use& use : value.uses) last = std::max(last, use.node);
        if (last - node.id > longest) {
          is_long_[id] = true;
          continue;
        }
        ++living;
        sum += id;
        ends[last].push_back(id);
      }
      if (living == 1) narrow[node.id] = static_cast<ValueId>(sum);
    }
    return narrow;
  }

  IndexedVector<ValueId, bool> inside_;
  IndexedVector<ValueId, bool> is_long_;
};

}  // namespace

Recomputation::Recomputation(const Graph& graph)
    : may_run_again_(graph.nodes().size(), false),
      pairs_(graph.values().size(), AllowedPairs::all()),
      may_leave_(graph.values().size(), false),
      may_be_needed_(graph.values().size(), false) {}

Recomputation::Recomputation(const Graph& graph, const RulesByNode& rules,
                             const Predicate& may_repeat)
    : Recomputation(graph) {
  const Chains chains(graph, rules, may_repeat);
  const Segments segments(graph, chains.products());
  for (const std::vector<NodeId>& chain : chains.chains()) {
    const std::vector<ValueId>& outputs = graph.node(chain.back()).outputs;
    const bool inside = outputs.size() == 1 && chains.may_leave(outputs[0]) &&
                        segments.has_inside(outputs[0]);
    for (const NodeId id : chain) {
      for (const ValueId value : graph.node(id).outputs) {
        if (chains.joins(value)) pairs_[value] = AllowedPairs::none();
      }
    }
    for (const Way way : kWays) {
      if (way == Way::kWithOutput && !inside) continue;
      const IndexedVector<NodeId, bool> again = chains.runs_again(chain, way);
      for (const NodeId id : chain) {
        const Node& node = graph.node(id);
        if (again[id]) may_run_again_[id] = true;
        for (const ValueId value : node.operands) {
          if (again[id]) may_be_needed_[value] = true;
          if (!chains.joins(value)) continue;
          pairs_[value].add(again[graph.value(value).producer], again[id]);
          if (again[id]) pairs_[value].add(false, true);
        }
      }
      if (way == Way::kWithOutput) may_leave_[outputs[0]] = again[chain.back()];
    }
  }
}

}  // namespace tensoropt
