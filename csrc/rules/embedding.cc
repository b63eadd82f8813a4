// Table look-up: rows [v, d] picked by an index of any shape, or picked and
// reduced by bags.

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
  const bool counts = node.bool_argument("scale_grad_by_freq", false);
  const int rows = rule.factor("v", counts ? 1 : weight[0]);
  for (std::size_t dim = 0; dim < index.size(); ++dim) {
    const int factor =
        rule.factor(str_format("b{}", dim), counts ? 1 : index[dim]);
    rule.bind_operand(1, static_cast<int>(dim), factor);
    rule.bind_output(0, static_cast<int>(dim), factor);
  }
  const int d = rule.factor("d", weight[1]);
  rule.bind_operand(0, 0, rows);
  rule.bind_operand(0, 1, d);
  rule.bind_output(0, static_cast<int>(index.size()), d);
  rule.save_operand(1);
  rule.looks_up({.operand = 1, .size = weight[0]});
  // More than touching each element once: a look-up is worth splitting.
  rule.flops(2 * rule.output_elements(), rule.output_elements());
  return rule.take();
}

LocalForm embedding_local(const Graph& graph, const Node& node,
                          const LocalContext& context) {
  if (context.factor_axes[kRows] == 0) return {};
  const std::int64_t rows = graph.operand(node, 0).meta.shape[0];
  LocalForm form;
  form.target = "tensoropt.embedding_shard.default";
  form.operands = {"weight", "indices"};
  form.extra = {context.range(kRows, rows).begin,
                node.int_argument("padding_idx", -1)};
  return form;
}

constexpr int kBags = 1;
constexpr std::int64_t kMax = 2;  // the mode

// What each bag is, which nobody reads outside of backward.
bool only_result_used(const Graph& graph, const Node& node) {
  for (std::size_t i = 1; i < node.outputs.size(); ++i) {
    if (!graph.output(node, static_cast<int>(i)).uses.empty()) return false;
  }
  return true;
}

// The row that does not count, which PyTorch lets count from the end; -1: none.
std::int64_t padding_of_bags(const Graph& graph, const Node& node) {
  if (!node.find("padding_idx")) return -1;
  const std::int64_t row = node.int_argument("padding_idx", -1);
  return row < 0 ? row + graph.operand(node, 0).meta.shape[0] : row;
}

void set_bag_costs(RuleBuilder& rule, const Graph& graph, const Node& node) {
  const auto& weight = rule.operand_shape(0);
  for (int i = 1; i < rule.num_operands(); ++i) rule.save_operand(i);
  rule.looks_up({.operand = 1, .size = weight[0]});
  if (node.operand_index("per_sample_weights") >= 0) rule.save_operand(0);
  const double indices =
      static_cast<double>(graph.operand(node, 1).meta.num_elements());
  rule.saves_extra(8 * indices, {kBags});  // the bag of each index
  const double flops = 2 * indices * static_cast<double>(weight[1]);
  rule.flops(flops, flops);
}

// Bags of rows, [n] indices cut at [b] offsets. Indices and offsets stay whole,
// since bags have any size; a rank takes the bags, and the rows, that are its
// own. A split of the rows leaves sums Partial; a maximum is no sum.
Rule embedding_bag_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& weight = rule.operand_shape(0);
  const bool counts = node.bool_argument("scale_grad_by_freq", false);
  const bool padding = padding_of_bags(graph, node) >= 0;
  const bool max = node.int_argument("mode", 0) == kMax;
  const bool parts = only_result_used(graph, node) && !counts;
  const int rows = rule.factor("v", parts && !padding && !max ? weight[0] : 1);
  const int bags = rule.factor("b", parts ? rule.output_shape(0)[0] : 1);
  const int d = rule.factor("d", only_result_used(graph, node) ? weight[1] : 1);
  rule.bind_operand(0, 0, rows);
  rule.bind_operand(0, 1, d);
  rule.bind_output(0, 0, bags);
  rule.bind_output(0, 1, d);
  set_bag_costs(rule, graph, node);
  return rule.take();
}

LocalForm embedding_bag_local(const Graph& graph, const Node& node,
                              const LocalContext& context) {
  LocalForm form;
  const bool rows = context.factor_axes[kRows] != 0;
  if (!rows && context.factor_axes[kBags] == 0) return form;
  const std::int64_t table = graph.operand(node, 0).meta.shape[0];
  const DimRange bags =
      context.range(kBags, graph.output(node, 0).meta.shape[0]);
  form.target = "tensoropt.embedding_bag_shard.default";
  form.operands = {"weight", "indices", "offsets", "per_sample_weights"};
  form.extra = {node.int_argument("mode", 0),
                node.bool_argument("include_last_offset", false),
                padding_of_bags(graph, node),
                rows ? context.range(kRows, table).begin : std::int64_t{-1},
                bags.begin,
                bags.size()};
  return form;
}

// Bags that are the rows of [b, t] indices, and so split with these.
Rule embedding_bag_rows_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& weight = rule.operand_shape(0);
  const bool padding = node.int_argument("padding_idx", -1) >= 0;
  const bool max = node.int_argument("mode", 0) == kMax;
  const int rows = rule.factor("v", padding || max ? 1 : weight[0]);
  const int bags = rule.factor("b", rule.operand_shape(1)[0]);
  const int d = rule.factor("d", weight[1]);
  rule.bind_operand(0, 0, rows);
  rule.bind_operand(0, 1, d);
  for (int i = 1; i < rule.num_operands(); ++i) rule.bind_operand(i, 0, bags);
  rule.bind_output(0, 0, bags);
  rule.bind_output(0, 1, d);
  set_bag_costs(rule, graph, node);
  return rule.take();
}

LocalForm embedding_bag_rows_local(const Graph& graph, const Node& node,
                                   const LocalContext& context) {
  LocalForm form;
  if (context.factor_axes[kRows] == 0) return form;
  const std::int64_t rows = graph.operand(node, 0).meta.shape[0];
  form.arguments.push_back(
      {"row_offset", Literal(context.range(kRows, rows).begin)});
  return form;
}

}  // namespace

void register_embedding(Registry& registry) {
  registry.add("aten.embedding.default", {embedding_rule, embedding_local});
  for (const char* target :
       {"aten.embedding_bag.default", "aten.embedding_bag.padding_idx"}) {
    registry.add(target, {embedding_bag_rule, embedding_bag_local});
  }
  registry.add("tensoropt.embedding_bag_rows.default",
               {embedding_bag_rows_rule, embedding_bag_rows_local});
}

}  // namespace tensoropt
