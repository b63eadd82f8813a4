// Table look-up: rows [v, d] picked by an index of any shape.

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

constexpr int kRows = 0;  // the factor of the vocabulary

// Index dims, then the embedding dim. A split of the rows leaves Partial
// outputs: each rank looks up its own rows and gives zeros for the others.
// Gradients by frequency count how often a row occurs in the whole index.
Rule embedding_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& weight = rule.operand_shape(0);
  const auto& index = rule.operand_shape(1);
  const bool padding = node.int_argument("padding_idx", -1) >= 0;
  const bool counts = node.bool_argument("scale_grad_by_freq", false);
  const int rows = rule.factor("v", padding || counts ? 1 : weight[0]);
  for (std::size_t dim = 0; dim < index.size(); ++dim) {
    const int factor =
        rule.factor(fmt::format("b{}", dim), counts ? 1 : index[dim]);
    rule.bind_operand(1, static_cast<int>(dim), factor);
    rule.bind_output(0, static_cast<int>(dim), factor);
  }
  const int d = rule.factor("d", weight[1]);
  rule.bind_operand(0, 0, rows);
  rule.bind_operand(0, 1, d);
  rule.bind_output(0, static_cast<int>(index.size()), d);
  rule.save_operand(1);
  // More than touching each element once: a look-up is worth splitting.
  rule.flops(2 * rule.output_elements(), rule.output_elements());
  return rule.take();
}

LocalForm embedding_local(const Graph& graph, const Node& node,
                          const LocalContext& context) {
  if (context.factor_axes[kRows] == 0) return {};
  const std::int64_t rows = graph.operand(node, 0).meta.shape[0];
  const std::int64_t local_rows = rows / context.parts(kRows);
  LocalForm form;
  form.target = "tensoropt.embedding_shard.default";
  form.extra.push_back(local_rows * context.part(kRows));
  return form;
}

}  // namespace

void register_embedding(Registry& registry) {
  registry.add("aten.embedding.default", {embedding_rule, embedding_local});
}

}  // namespace tensoropt
