// LSTM and GRU layers: input [t, b, i] (or [b, t, i]), states [1, b, h],
// weights [gates * h, i] and [gates * h, h], outputs [t, b, h] and the last
// states.
//
// The batch can be split, with the same call on each rank, and so can the units
// h: then a rank computes a block of gate rows and the states of its units, and
// ranks exchange gates and states in every step (csrc/runtime/recurrent_*).
// Several layers or directions in one call keep their units whole; the frontend
// makes single calls of them.

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

constexpr int kUnits = 1;  // the factor of h

// What a cell has, as PyTorch stacks it.
struct Cell {
  int gates;
  int states;
  int saved;           // numbers kept for each unit and step besides the output
  bool same_gradient;  // of the gates' input part and recurrent part
  const char* sharded;
};
constexpr Cell kLstm{4, 2, 5, true, "tensoropt.lstm_shard"};
constexpr Cell kGru{3, 1, 4, false, "tensoropt.gru_shard"};

// The call's sizes and where its weights are among the operands.
struct Call {
  std::int64_t steps = 1;
  std::int64_t batch = 1;
  std::int64_t units = 1;
  int batch_dim = 1;  // of input and output
  int first_weight = 0;
  std::int64_t stacks = 1;  // layers times directions
  bool projected = false;   // the output is smaller than the cell

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
    projected =
        cell.states == 2 && graph.operand(node, 2).meta.shape[2] != units;
  }
  int weights_per_stack(const Node& node) const {
    return (static_cast<int>(node.operands.size()) - first_weight) /
           static_cast<int>(stacks);
  }
};

void bind_dims(RuleBuilder& rule, const Call& call) {
  const int batch = rule.factor("b", call.batch);
  const bool split = call.stacks == 1 && !call.projected;
  const int units = rule.factor("h", split ? call.units : 1);
  rule.keep_even(units);
  rule.bind_operand(0, call.batch_dim, batch);
  rule.bind_output(0, call.batch_dim, batch);
  for (int i = 1; i < call.first_weight; ++i) {
    rule.bind_operand(i, 1, batch);
    rule.bind_output(i, 1, batch);
  }
  if (!split) return;
  rule.bind_output(0, 2, units);
  for (int i = 1; i < call.first_weight; ++i) {
    rule.bind_operand(i, 2, units);
    rule.bind_output(i, 2, units);
  }
  for (int i = call.first_weight; i < rule.num_operands(); ++i) {
    rule.bind_operand(i, 0, units);
  }
}

// The exchanges of a layer whose units are split.
void declare_exchanges(RuleBuilder& rule, const Call& call, const Cell& cell,
                       double item_bytes) {
  const double steps = static_cast<double>(call.steps);
  const double states =
      static_cast<double>(call.batch * call.units) * item_bytes;  // of one step
  const double gates = cell.gates * states;
  const auto add = [&](Collective kind, double bytes, Pass pass, double times,
                       std::vector<int> divided_by) {
    rule.runs_collective(
        {kind, {kUnits}, bytes, std::move(divided_by), pass, times});
  };
  const std::vector<int> batch{0};
  const std::vector<int> both{0, kUnits};
  const auto to_all = Collective::kAllToAll;
  add(to_all, gates * steps, Pass::kForward, 1, both);
  add(Collective::kAllGather, states, Pass::kForward, steps, batch);
  add(to_all, gates, Pass::kForward, steps, both);
  add(to_all, gates, Pass::kBackward, steps, both);
  add(Collective::kReduceScatter, states, Pass::kBackward, steps, batch);
  add(Collective::kAllGather, states * steps, Pass::kBackward, 1, batch);
  if (!cell.same_gradient) {
    add(to_all, gates * steps, Pass::kBackward, 1, both);
  }
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
    if (weight.rank() != 2) continue;
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
  rule.saves_extra(cell.saved * cells * item_bytes, {0, kUnits});
}

Rule recurrent_rule(const Graph& graph, const Node& node, const Cell& cell) {
  RuleBuilder rule(graph, node);
  const Call call(graph, node, cell);
  bind_dims(rule, call);
  set_costs(rule, graph, node, call, cell);
  declare_exchanges(rule, call, cell,
                    item_size(graph.operand(node, 0).meta.dtype));
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
  form.target =
      str_format("{}.{}", cell.sharded,
                 node.bool_argument("has_biases", true) ? "bias" : "default");
  form.extra = {node.bool_argument("batch_first", false)};
  form.groups = {axes};
  return form;
}

void add_cell(Registry& registry, const char* target, const Cell& cell) {
  registry.add(target, {[&cell](const Graph& graph, const Node& node) {
                          return recurrent_rule(graph, node, cell);
                        },
                        [&cell](const Graph&, const Node& node,
                                const LocalContext& context) {
                          return recurrent_local(node, context, cell);
                        }});
}

}  // namespace

void register_recurrent(Registry& registry) {
  add_cell(registry, "aten.lstm.input", kLstm);
  add_cell(registry, "aten.gru.input", kGru);
}

}  // namespace tensoropt
