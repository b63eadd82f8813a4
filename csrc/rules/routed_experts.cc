// Top-k routed experts (csrc/runtime/routed_experts_op.cc): tokens [t, d], the
// experts chosen for each [t, k] with their weights, matrices [e, d, w] and
// [e, f, d], or transposed.
//
//   t   tokens: a rank runs all experts on its tokens
//   e   experts, each rank with all tokens: the results are summed
//   f   the inner dim; with gates ranks exchange halves of columns, as the
//       gates of recurrent layers
//   te  tokens and experts over the same axis: rows go to the rank that has
//       their expert and back, by all-to-all
//
// How many rows an expert gets is known when it runs; costs are those of equal
// shares.

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

constexpr int kTokens = 0;
constexpr int kExperts = 1;
constexpr int kInner = 2;
constexpr int kExchanged = 3;

// Where the matrices have their rows; columns are at the other one of 1 and 2.
int rows_dim(const Node& node) {
  return node.bool_argument("transposed", false) ? 2 : 1;
}

struct Sizes {
  double choices = 1;  // tokens times experts of each
  double model = 1;
  double columns = 1;  // of the first product
  double inner = 1;
  double experts = 1;
  double item_bytes = 1;
  bool gated = false;

  Sizes(const Graph& graph, const Node& node)
      : choices(
            static_cast<double>(graph.operand(node, 1).meta.num_elements())),
        gated(node.bool_argument("gated", false)) {
    const int rows = rows_dim(node);
    const TensorMeta& up = graph.operand(node, 3).meta;
    experts = static_cast<double>(up.shape[0]);
    model = static_cast<double>(up.shape[rows]);
    columns = static_cast<double>(up.shape[3 - rows]);
    inner = static_cast<double>(graph.operand(node, 4).meta.shape[rows]);
    item_bytes = item_size(up.dtype);
  }
};

bool is_aligned(const Node& node) {
  return std::get<std::string>(*node.find("product")) == "aten::_grouped_mm";
}

// Blocks of the inner dim that the product takes: PyTorch's kernel wants rows
// that begin at multiples of 16 bytes.
std::int64_t inner_blocks(const Node& node, std::int64_t inner,
                          double item_bytes) {
  constexpr int kAlignedBytes = 16;
  if (!is_aligned(node)) return inner;
  const std::int64_t alignment =
      kAlignedBytes / static_cast<std::int64_t>(item_bytes);
  return inner % alignment == 0 ? inner / alignment : 1;
}

void bind_dims(RuleBuilder& rule, const Node& node, double item_bytes) {
  const int tokens = rule.factor("t", rule.operand_shape(0)[0]);
  const int experts = rule.factor("e", rule.operand_shape(3)[0]);
  const int rows = rows_dim(node);
  const int inner = rule.factor(
      "f", inner_blocks(node, rule.operand_shape(4)[rows], item_bytes));
  rule.keep_even(inner);
  rule.joint_factor("te", tokens, experts);
  for (int i = 0; i < 3; ++i) rule.bind_operand(i, 0, tokens);
  for (int i = 3; i < 5; ++i) rule.bind_operand(i, 0, experts);
  rule.bind_operand(3, 3 - rows, inner);
  rule.bind_operand(4, rows, inner);
  rule.bind_output(0, 0, tokens);
}

// Counts of rows, then rows there and back; gradients likewise.
void declare_exchanges(RuleBuilder& rule, const Sizes& sizes) {
  const auto add = [&](int over, double bytes, std::vector<int> divided_by,
                       Pass pass, double times) {
    rule.runs_collective({Collective::kAllToAll,
                          {over},
                          bytes,
                          std::move(divided_by),
                          pass,
                          times});
  };
  const double rows = sizes.choices * sizes.item_bytes;
  add(kExchanged, sizes.experts * sizeof(std::int64_t), {kExperts},
      Pass::kForward, 1);
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    add(kExchanged, rows * sizes.model, {kTokens, kExperts, kExchanged}, pass,
        2);
    if (!sizes.gated) continue;
    add(kInner, rows * sizes.columns, {kTokens, kExperts, kInner, kExchanged},
        pass, 1);
  }
}

// Rows before and after the experts, their gates, and where rows came from.
void set_saved(RuleBuilder& rule, const Sizes& sizes) {
  constexpr double kOrders = 3;
  rule.save_operand(3);
  rule.save_operand(4);
  const double rows = sizes.choices * sizes.item_bytes;
  const double inside = sizes.columns + (sizes.gated ? 2 : 1) * sizes.inner;
  rule.saves_extra(2 * rows * sizes.model, {kTokens, kExperts, kExchanged});
  rule.saves_extra(rows * inside, {kTokens, kExperts, kInner, kExchanged});
  rule.saves_extra(kOrders * sizes.choices * sizeof(std::int64_t),
                   {kTokens, kExchanged});
}

// Rows are picked, multiplied twice, weighted, put back and summed; tokens
// stand for all that traffic, since it is split as they are.
void set_work(RuleBuilder& rule, const Node& node, const Sizes& sizes) {
  constexpr double kRowPasses = 8;
  constexpr double kLaunches = 20;
  const double flops =
      2 * sizes.choices * sizes.model * (sizes.columns + sizes.inner);
  rule.flops(flops, 2 * flops);
  const double inside = 2 * sizes.columns + 3 * sizes.inner;
  rule.reads_operand(
      0, sizes.choices * (kRowPasses * sizes.model + inside) /
             (static_cast<double>(rule.operand_shape(0)[0]) * sizes.model));
  // One kernel for all experts, or one for each.
  rule.launches(kLaunches + (is_aligned(node) ? 2 : 2 * sizes.experts));
}

Rule routed_experts_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Sizes sizes(graph, node);
  bind_dims(rule, node, sizes.item_bytes);
  set_work(rule, node, sizes);
  declare_exchanges(rule, sizes);
  rule.looks_up({.operand = 1, .size = rule.operand_shape(3)[0]});
  if (graph.output(node, 0).requires_grad) set_saved(rule, sizes);
  return rule.take();
}

LocalForm routed_experts_local(const Graph& graph, const Node& node,
                               const LocalContext& context) {
  LocalForm form;
  const AxisSet exchanged = context.factor_axes[kExchanged];
  const AxisSet experts = context.factor_axes[kExperts] | exchanged;
  const AxisSet inner = context.factor_axes[kInner];
  if ((experts | inner) == 0) return form;
  const Mesh& mesh = context.mesh;
  const std::int64_t all = graph.operand(node, 3).meta.shape[0];
  std::vector<std::int64_t> first_experts;
  for (const int rank : mesh.group_of(exchanged, context.rank)) {
    first_experts.push_back(all / mesh.size_of(experts) *
                            mesh.index_in(experts, rank));
  }
  form.target = "tensoropt.routed_experts_shard.default";
  form.extra = {*node.find("product"),
                *node.find("activation"),
                node.bool_argument("gated", false),
                node.bool_argument("transposed", false),
                all,
                first_experts};
  form.groups = {exchanged, inner};
  return form;
}

}  // namespace

void register_routed_experts(Registry& registry) {
  registry.add("tensoropt.routed_experts.default",
               {routed_experts_rule, routed_experts_local});
}

}  // namespace tensoropt
