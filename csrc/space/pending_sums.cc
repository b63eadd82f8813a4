#include "space/pending_sums.h"

#include <algorithm>

#include "common/check.h"
#include "rules/config.h"

namespace tensoropt {

namespace {

bool has_dim(const Rule& rule, const TensorRule& tensor, int factor) {
  return dim_of(rule, tensor, factor) >= 0;
}

bool splittable(const Factor& factor) { return factor.size > 1; }

// Whether some split leaves output 0 Partial.
bool reduces(const Rule& rule) {
  for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
    const Factor& factor = rule.factors[f];
    if (splittable(factor) && factor.kind == FactorKind::kDefault &&
        !rule.outputs.empty() && !has_dim(rule, rule.outputs[0], f)) {
      return true;
    }
  }
  return false;
}

int count_pending(const Node& node, const std::vector<int>& set,
                  const std::vector<bool>& pending) {
  return static_cast<int>(std::count_if(
      set.begin(), set.end(),
      [&](int operand) { return pending[node.operands[operand]]; }));
}

// Values that may reach their only consumer Partial. A relay has no pending
// values, so several consumers end it.
std::vector<bool> find_pending(const Graph& graph, const RulesByNode& rules) {
  std::vector<bool> pending(graph.values().size(), false);
  for (const Node& node : graph.nodes()) {
    if (node.kind != NodeKind::kOp) continue;
    const Rule& rule = rules[node.id];
    bool any = reduces(rule);
    for (const auto& set : rule.linear_sets) {
      any = any || count_pending(node, set, pending) > 0;
    }
    for (const ValueId id : node.outputs) {
      pending[id] = any && graph.value(id).uses.size() == 1;
    }
  }
  return pending;
}

// Whether the outputs are smaller than the largest operand of the set.
bool shrinks(const Graph& graph, const Node& node,
             const std::vector<int>& set) {
  double before = 0;
  for (const int operand : set) {
    before = std::max(before, graph.operand(node, operand).meta.num_bytes());
  }
  double after = 0;
  for (const ValueId id : node.outputs) {
    after += graph.value(id).meta.num_bytes();
  }
  return after < before;
}

}  // namespace

void remove_idle_linear_sets(const Graph& graph, RulesByNode& rules,
                             Exclusions& left_out) {
  const std::vector<bool> pending = find_pending(graph, rules);
  // Values whose consumer gains from getting them Partial.
  std::vector<bool> pays(graph.values().size(), false);
  for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend();
       ++node) {
    if (node->kind != NodeKind::kOp) continue;
    auto& sets = rules[node->id].linear_sets;
    const bool later = std::any_of(node->outputs.begin(), node->outputs.end(),
                                   [&](ValueId id) { return pays[id]; });
    std::erase_if(sets, [&](const std::vector<int>& set) {
      const int count = count_pending(*node, set, pending);
      const bool idle =
          count == 0 || (count < 2 && !later && !shrinks(graph, *node, set));
      if (idle) {
        left_out.push_back(
            {node->id, ExclusionReason::kIdleSum, label_of(set)});
      }
      return idle;
    });
    for (const auto& set : sets) {
      for (const int operand : set) pays[node->operands[operand]] = true;
    }
  }
}

bool shares_pending_gradients(const Graph& graph, const RulesByNode& rules,
                              const Value& value) {
  int count = 0;
  for (const Use& use : value.uses) {
    if (graph.node(use.node).kind != NodeKind::kOp) continue;
    const Rule& rule = rules[use.node];
    const TensorRule& operand = rule.operands[use.operand];
    bool lacks = false;
    for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
      lacks =
          lacks || (splittable(rule.factors[f]) && !has_dim(rule, operand, f));
    }
    for (const auto& set : rule.linear_sets) {
      lacks =
          lacks || std::find(set.begin(), set.end(), use.operand) == set.end();
    }
    if (lacks) ++count;
  }
  return count >= 2;
}

}  // namespace tensoropt
