// LSTM and GRU layers: input [t, b, i] (or [b, t, i]), states [1, b, h],
// outputs [t, b, h] and the last states.
//
// tensoropt::lstm and gru have weights [gates, h, i] and [gates, h, h]. The
// batch can be split, with the same call on each rank, and so can the units h:
// then a rank computes the gates of its units, and ranks gather the states in
// every step (csrc/runtime/recurrent_shard_op.cc).
//
// PyTorch's own have weights [gates * h, i] and [gates * h, h]: with several
// layers or directions, or outputs that are smaller than the cell. Only their
// batch is split. The frontend makes single calls of stacks.

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

constexpr int kUnits = 1;  // the factor of h

// What a cell has, as PyTorch stacks it.
struct Cell {
  int gates;
  int states;
  int saved;  // numbers kept for each unit and step besides the output
  const char* sharded;
};
constexpr Cell kLstm{4, 2, 5, "tensoropt.lstm_shard.default"};
constexpr Cell kGru{3, 1, 4, "tensoropt.gru_shard.default"};

// The call's sizes and where its weights are among the operands.
struct Call {
  std::int64_t steps = 1;
  std::int64_t batch = 1;
  std::int64_t units = 1;
  int batch_dim = 1;  // of input and output
  int first_weight = 0;
  std::int64_t stacks = 1;  // layers times directions
  int matrix_rank = 2;      // of weights

  Call(const Graph& graph, const Node& node, const Cell& cell)
      : first_weight(1 + cell.states) {
    const Shape& input = graph.operand(node, 0).meta.shape;
    const Shape& state = graph.operand(node, 1).meta.shape;
    TO_ASSERT(input.size() == 3 && state.size() == 3,
              "'{}' ({}) has an input of {} dims", node.name, node.target,
              input.size());
    batch_dim = node.bool_argument("batch_first", false) ? 0 : 1;
    steps = input[1 - batch_dim];
    batch = input[batch_dim];
    units = state[2];
    stacks = state[0];
    matrix_rank = graph.operand(node, first_weight).meta.rank();
  }
  bool by_gates() const { return matrix_rank == 3; }
  int weights_per_stack(const Node& node) const {
    return (static_cast<int>(node.operands.size()) - first_weight) /
           static_cast<int>(stacks);
  }
};

void bind_dims(RuleBuilder& rule, const Call& call) {
  const int batch = rule.factor("b", call.batch);
  rule.bind_operand(0, call.batch_dim, batch);
  rule.bind_output(0, call.batch_dim, batch);
  for (int i = 1; i < call.first_weight; ++i) {
    rule.bind_operand(i, 1, batch);
    rule.bind_output(i, 1, batch);
  }
  if (!call.by_gates()) return;
  const int units = rule.factor("h", call.units);
  rule.keep_even(units);
  rule.bind_output(0, 2, units);
  for (int i = 1; i < call.first_weight; ++i) {
    rule.bind_operand(i, 2, units);
    rule.bind_output(i, 2, units);
  }
  for (int i = call.first_weight; i < rule.num_operands(); ++i) {
    rule.bind_operand(i, 1, units);
  }
}

// The exchanges of a layer whose units are split.
void declare_exchanges(RuleBuilder& rule, const Call& call, double item_bytes) {
  const double steps = static_cast<double>(call.steps);
  const double states =
      static_cast<double>(call.batch * call.units) * item_bytes;  // of one step
  const auto add = [&](Collective kind, double bytes, Pass pass, double times) {
    rule.runs_collective({kind, {kUnits}, bytes, {0}, pass, times});
  };
  add(Collective::kAllGather, states, Pass::kForward, steps);
  add(Collective::kReduceScatter, states, Pass::kBackward, steps);
  add(Collective::kAllGather, states * steps, Pass::kBackward, 1);
}

// Recurrent weights are read in every step, by one product; another kernel
// updates the cell.
void set_costs(RuleBuilder& rule, const Graph& graph, const Node& node,
               const Call& call, const Cell& cell) {
  constexpr double kLaunchesPerStep = 2;
  const double steps = static_cast<double>(call.steps);
  const int per_stack = call.weights_per_stack(node);
  double flops = 0;
  for (int i = call.first_weight; i < rule.num_operands(); ++i) {
    const TensorMeta& weight = graph.operand(node, i).meta;
    if (weight.rank() != call.matrix_rank) continue;
    flops += 2 * steps * static_cast<double>(call.batch) *
             static_cast<double>(weight.num_elements());
    if ((i - call.first_weight) % per_stack > 0) rule.reads_operand(i, steps);
    rule.save_operand(i);
  }
  rule.flops(flops, 2 * flops);
  rule.launches(kLaunchesPerStep * steps * static_cast<double>(call.stacks));
  if (!graph.output(node, 0).requires_grad) return;
  for (int i = 0; i < call.first_weight; ++i) rule.save_operand(i);
  rule.save_output(0);
  const double item_bytes = item_size(graph.operand(node, 0).meta.dtype);
  const double cells =
      steps * static_cast<double>(call.stacks * call.batch * call.units);
  std::vector<int> divided_by{0};
  if (call.by_gates()) divided_by.push_back(kUnits);
  rule.saves_extra(cell.saved * cells * item_bytes, std::move(divided_by));
}

Rule recurrent_rule(const Graph& graph, const Node& node, const Cell& cell) {
  RuleBuilder rule(graph, node);
  const Call call(graph, node, cell);
  bind_dims(rule, call);
  set_costs(rule, graph, node, call, cell);
  if (call.by_gates()) {
    declare_exchanges(rule, call, item_size(graph.operand(node, 0).meta.dtype));
  }
  const bool drops = node.double_argument("dropout", 0) > 0 &&
                     node.bool_argument("train", false) &&
                     node.int_argument("num_layers", 1) > 1;
  if (drops) rule.random();
  return rule.take();
}

LocalForm recurrent_local(const Node& node, const LocalContext& context,
                          const Cell& cell) {
  LocalForm form;
  const AxisSet axes = context.factor_axes[kUnits];
  if (axes == 0) return form;
  form.target = cell.sharded;
  form.operands = {"input", "h", "w_ih", "w_hh", "b_ih", "b_hh"};
  if (cell.states == 2) form.operands.insert(form.operands.begin() + 2, "c");
  form.extra = {node.bool_argument("batch_first", false)};
  form.groups = {axes};
  return form;
}

void add_cell(Registry& registry, const char* whole, const char* by_gates,
              const Cell& cell) {
  const auto rule = [&cell](const Graph& graph, const Node& node) {
    return recurrent_rule(graph, node, cell);
  };
  registry.add(whole, {rule, {}});
  registry.add(by_gates, {rule, [&cell](const Graph&, const Node& node,
                                        const LocalContext& context) {
                            return recurrent_local(node, context, cell);
                          }});
}

}  // namespace

void register_recurrent(Registry& registry) {
  add_cell(registry, "aten.lstm.input", "tensoropt.lstm.default", kLstm);
  add_cell(registry, "aten.gru.input", "tensoropt.gru.default", kGru);
}

}  // namespace tensoropt
