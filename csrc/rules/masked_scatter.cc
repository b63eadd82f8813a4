// Elements of a source, taken in order wherever a mask says so. Blocks of the
// first dim can be split: ranks count what those before them take. All have the
// source.

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

constexpr int kRows = 0;  // the factor of the first dim

Rule masked_scatter_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& shape = rule.output_shape(0);
  const Shape& mask = rule.operand_shape(1);
  const double elements = rule.output_elements();
  const double index_bytes = 8;
  if (!shape.empty() && rule.operand_shape(0) == shape) {
    const int rows = rule.factor("b", shape[0]);
    rule.bind_operand(0, 0, rows);
    rule.bind_output(0, 0, rows);
    const bool aligned = mask.size() == shape.size();
    if (aligned && mask[0] == shape[0]) rule.bind_operand(1, 0, rows);
    rule.runs_collective({Collective::kAllGather, {rows}, index_bytes, {}});
    if (rule.operand_requires_grad(2)) {
      rule.saves_if_split(rows, index_bytes * elements, {rows});
    }
  }
  if (graph.output(node, 0).requires_grad) rule.save_operand(1);
  rule.linear_in({0, 2});
  rule.flops(elements, elements);
  return rule.take();
}

LocalForm masked_scatter_local(const Graph&, const Node&,
                               const LocalContext& context) {
  LocalForm form;
  if (context.factor_axes.empty() || context.factor_axes[kRows] == 0) {
    return form;
  }
  form.target = "tensoropt.masked_scatter_shard.default";
  form.groups = {context.factor_axes[kRows]};
  return form;
}

}  // namespace

void register_masked_scatter(Registry& registry) {
  registry.add("aten.masked_scatter.default",
               {masked_scatter_rule, masked_scatter_local});
}

}  // namespace tensoropt
