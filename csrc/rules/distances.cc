// Similarities and distances of vectors. A vector is not split; the dims that
// count vectors are.

#include <algorithm>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// Elements per FLOP are rough: these operators are bound by memory.
constexpr double kFlopsPerElement = 4;

void set_costs(RuleBuilder& rule, const Graph& graph, const Node& node,
               double flops) {
  if (graph.output(node, 0).requires_grad) {
    rule.save_operand(0);
    rule.save_operand(1);
    rule.save_output(0);
  }
  rule.flops(flops, 2 * flops);
}

// Of vectors along `dim` of two tensors that broadcast; `kept` if the dim stays
// in the output.
Rule pairs_rule(const Graph& graph, const Node& node, int dim, bool kept) {
  RuleBuilder rule(graph, node);
  const int rank = static_cast<int>(
      std::max(rule.operand_shape(0).size(), rule.operand_shape(1).size()));
  dim = normalize_dim(dim, static_cast<std::size_t>(rank));
  double elements = 1;
  for (int d = 0; d < rank; ++d) {
    std::int64_t size = 1;
    for (int i = 0; i < 2; ++i) {
      const auto& shape = rule.operand_shape(i);
      const int own = d - rank + static_cast<int>(shape.size());
      if (own >= 0) size = std::max(size, shape[own]);
    }
    elements *= static_cast<double>(size);
    if (d == dim) continue;
    const int factor = rule.factor(str_format("d{}", d), size);
    for (int i = 0; i < 2; ++i) {
      const auto& shape = rule.operand_shape(i);
      const int own = d - rank + static_cast<int>(shape.size());
      if (own >= 0 && shape[own] == size) rule.bind_operand(i, own, factor);
    }
    rule.bind_output(0, d < dim || kept ? d : d - 1, factor);
  }
  set_costs(rule, graph, node, kFlopsPerElement * elements);
  return rule.take();
}

Rule similarity_rule(const Graph& graph, const Node& node) {
  return pairs_rule(graph, node, static_cast<int>(node.int_argument("dim", 1)),
                    false);
}

Rule pairwise_rule(const Graph& graph, const Node& node) {
  return pairs_rule(graph, node, -1, node.bool_argument("keepdim", false));
}

// Of every row of [..., p, m] to every row of [..., r, m].
Rule all_pairs_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& out = rule.output_shape(0);
  const int rank = static_cast<int>(out.size());
  for (int dim = 0; dim < rank; ++dim) {
    const int factor = rule.factor(str_format("d{}", dim), out[dim]);
    rule.bind_output(0, dim, factor);
    for (int i = 0; i < 2; ++i) {
      const auto& shape = rule.operand_shape(i);
      const int own_rank = static_cast<int>(shape.size());
      const int rows = i == 0 ? rank - 2 : rank - 1;
      const int own = dim == rows ? own_rank - 2 : dim - rank + own_rank;
      const bool matrix_dim = dim >= rank - 2 && dim != rows;
      if (own < 0 || matrix_dim || shape[own] != out[dim]) continue;
      rule.bind_operand(i, own, factor);
    }
  }
  set_costs(rule, graph, node,
            2 * rule.output_elements() *
                static_cast<double>(rule.operand_shape(0).back()));
  return rule.take();
}

}  // namespace

void register_distances(Registry& registry) {
  registry.add("aten.cosine_similarity.default", {similarity_rule, {}});
  registry.add("aten.pairwise_distance.default", {pairwise_rule, {}});
  registry.add("aten.cdist.default", {all_pairs_rule, {}});
}

}  // namespace tensoropt
