// tensoropt::lstm_shard(input, h, c, w_ih, w_hh, [b_ih, b_hh,] batch_first,
//                       group) -> (output, h_n, c_n)
// tensoropt::gru_shard(input, h, w_ih, w_hh, [b_ih, b_hh,] batch_first, group)
//     -> (output, h_n)
//
// One layer whose units are split over the ranks of `group`: weights and biases
// are this rank's block of gate rows, h and c the states [1, b, u] of its
// units, as are the results. `input` is whole and its gradient a pending sum.
// Weights are never gathered. In each step ranks gather h (backward:
// reduce-scatter) and exchange gate rows for the gates of their units
// (gate_exchange.h); the input part of the gates is computed and exchanged for
// all steps at once.
//
// Saved for backward: the operands, the output, and for each unit and step 5
// (LSTM) or 4 (GRU) numbers. The output is a view of [u, t, b].

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "runtime/gate_exchange.h"
#include "runtime/recurrent_cell.h"

namespace tensoropt::recurrent_shard_op {

namespace {

using torch::autograd::AutogradContext;
using Optional = std::optional<at::Tensor>;

// The operands of one call; `c` is undefined for a GRU, biases without them.
struct Layer {
  at::Tensor input;
  at::Tensor h;
  at::Tensor c;
  at::Tensor w_ih;
  at::Tensor w_hh;
  at::Tensor b_ih;
  at::Tensor b_hh;
  bool batch_first = false;

  const RecurrentCell& cell() const {
    return c.defined() ? lstm_cell() : gru_cell();
  }
  std::int64_t steps() const { return input.size(batch_first ? 1 : 0); }
  std::int64_t batch() const { return input.size(batch_first ? 0 : 1); }
  std::int64_t units() const { return h.size(2); }
  std::int64_t rows() const { return cell().gates() * units(); }

  // [i, t * b]
  at::Tensor input_columns() const {
    const at::Tensor by_step = batch_first ? input.transpose(0, 1) : input;
    return by_step.reshape({steps() * batch(), input.size(2)}).t();
  }
  // The whole output from [u, t, b], and back.
  at::Tensor to_output(const at::Tensor& states) const {
    return batch_first ? states.permute({2, 1, 0}) : states.permute({1, 2, 0});
  }
  at::Tensor from_output(const at::Tensor& output) const {
    return batch_first ? output.permute({2, 1, 0}) : output.permute({2, 0, 1});
  }
  // [u, t, b] of the states before each step.
  at::Tensor before_steps(const at::Tensor& first,
                          const at::Tensor& states) const {
    return at::cat(
        {columns(first).unsqueeze(1), states.narrow(1, 0, steps() - 1)}, 1);
  }
  // [1, b, u] -> [u, b], and back.
  static at::Tensor columns(const at::Tensor& state) {
    return state.defined() ? state[0].t().contiguous() : state;
  }
  static at::Tensor state(const at::Tensor& columns) {
    return columns.t().contiguous().unsqueeze(0);
  }
};

void check_layer(const Layer& layer) {
  TORCH_CHECK_VALUE(
      layer.input.dim() == 3 && layer.h.dim() == 3 && layer.h.size(0) == 1 &&
          layer.h.size(1) == layer.batch() && layer.steps() > 0,
      "a sharded recurrent layer needs an input [t, b, i] and states [1, b, u],"
      " got ",
      layer.input.sizes(), " and ", layer.h.sizes());
  TORCH_CHECK_VALUE(
      layer.w_ih.dim() == 2 && layer.w_ih.size(0) == layer.rows() &&
          layer.w_ih.size(1) == layer.input.size(2) && layer.w_hh.dim() == 2 &&
          layer.w_hh.size(0) == layer.rows() &&
          layer.w_hh.size(1) % layer.units() == 0,
      "a sharded recurrent layer needs ", layer.rows(),
      " gate rows for states of ", layer.units(), " units, got ",
      layer.w_ih.sizes(), " and ", layer.w_hh.sizes());
}

Layer make_layer(const at::Tensor& input, const at::Tensor& h,
                 const Optional& c, const at::Tensor& w_ih,
                 const at::Tensor& w_hh, const Optional& b_ih,
                 const Optional& b_hh, bool batch_first) {
  Layer layer{input,
              h,
              c.value_or(at::Tensor()),
              w_ih,
              w_hh,
              b_ih.value_or(at::Tensor()),
              b_hh.value_or(at::Tensor()),
              batch_first};
  check_layer(layer);
  return layer;
}

at::Tensor product(const at::Tensor& weight, const at::Tensor& columns,
                   const at::Tensor& bias) {
  return bias.defined() ? at::addmm(bias.unsqueeze(1), weight, columns)
                        : at::mm(weight, columns);
}

// --- LayerResult
// -----------------------------------------------------------------

// The output, h_n, c_n, and what the cell saves, [saved, u, t, b].
using LayerResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

LayerResult run_forward(const Layer& layer, const Group& group) {
  const RecurrentCell& cell = layer.cell();
  const GateExchange exchange(group, cell.gates());
  const std::int64_t steps = layer.steps();
  const std::int64_t batch = layer.batch();
  const std::int64_t units = layer.units();
  const at::Tensor rows =
      product(layer.w_ih, layer.input_columns(), layer.b_ih);
  const at::Tensor input =
      exchange.to_units(rows.view({cell.gates(), units, steps * batch}))
          .view({cell.gates(), units, steps, batch});
  CellState state{Layer::columns(layer.h), Layer::columns(layer.c)};
  at::Tensor states = at::empty({units, steps, batch}, rows.options());
  at::Tensor saved =
      at::empty({cell.saved(), units, steps, batch}, rows.options());
  for (std::int64_t t = 0; t < steps; ++t) {
    const at::Tensor whole = all_gather(state.h, group).flatten(0, 1);
    const at::Tensor recurrent = exchange.to_units(
        product(layer.w_hh, whole, layer.b_hh).view({-1, units, batch}));
    const CellStep step = cell.forward(input.select(2, t), recurrent, state);
    state = step.state;
    states.select(1, t).copy_(state.h);
    saved.select(2, t).copy_(step.saved);
  }
  return {layer.to_output(states), Layer::state(state.h),
          state.c.defined() ? Layer::state(state.c) : rows.new_empty({0}),
          saved};
}

LayerResult forward_kernel(const at::Tensor& input, const at::Tensor& h,
                           const Optional& c, const at::Tensor& w_ih,
                           const at::Tensor& w_hh, const Optional& b_ih,
                           const Optional& b_hh, bool batch_first,
                           const std::string& group) {
  const Layer layer =
      make_layer(input, h, c, w_ih, w_hh, b_ih, b_hh, batch_first);
  return run_forward(layer, find_group(group));
}

LayerResult forward_meta(const at::Tensor& input, const at::Tensor& h,
                         const Optional& c, const at::Tensor& w_ih,
                         const at::Tensor& w_hh, const Optional& b_ih,
                         const Optional& b_hh, bool batch_first,
                         const std::string& /*group*/) {
  const Layer layer =
      make_layer(input, h, c, w_ih, w_hh, b_ih, b_hh, batch_first);
  const auto options = input.options();
  const std::int64_t steps = layer.steps();
  const std::int64_t batch = layer.batch();
  return {
      layer.to_output(at::empty({layer.units(), steps, batch}, options)),
      at::empty(h.sizes(), options),
      layer.c.defined() ? at::empty(h.sizes(), options)
                        : at::empty({0}, options),
      at::empty({layer.cell().saved(), layer.units(), steps, batch}, options)};
}

// --- Backward ----------------------------------------------------------------

// Of the operands of the layer, in order; those that are not there are empty.
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                             at::Tensor, at::Tensor, at::Tensor>;

// What the steps give, from the last to the first.
struct StepGradients {
  at::Tensor input;  // of the input part of the units' gates, [g, u, t, b]
  at::Tensor
      recurrent;    // of the recurrent part of the gate rows, [g * u, t, b]
  CellState first;  // of the state before the first step, [u, b]
};

StepGradients run_steps(const Layer& layer, const at::Tensor& states,
                        const at::Tensor& saved, const at::Tensor& output,
                        CellState gradient, const GateExchange& exchange,
                        const Group& group) {
  const RecurrentCell& cell = layer.cell();
  const std::int64_t batch = layer.batch();
  const std::int64_t units = layer.units();
  const CellState first{Layer::columns(layer.h), Layer::columns(layer.c)};
  StepGradients result;
  if (!cell.same_gradient()) {
    result.input =
        at::empty({cell.gates(), units, layer.steps(), batch}, saved.options());
  }
  result.recurrent =
      at::empty({layer.rows(), layer.steps(), batch}, saved.options());
  for (std::int64_t t = layer.steps() - 1; t >= 0; --t) {
    const CellState before =
        t == 0 ? first
               : CellState{states.select(1, t - 1),
                           cell.saved_c(saved.select(2, t - 1))};
    gradient.h = gradient.h + output.select(1, t);
    const CellGradient step =
        cell.backward(gradient, saved.select(2, t), before);
    const at::Tensor rows = exchange.to_rows(step.recurrent).flatten(0, 1);
    gradient.h = reduce_scatter(
        at::mm(layer.w_hh.t(), rows).view({-1, units, batch}), group);
    if (step.state.h.defined()) gradient.h += step.state.h;
    gradient.c = step.state.c;
    result.recurrent.select(1, t).copy_(rows);
    if (!cell.same_gradient()) result.input.select(2, t).copy_(step.input);
  }
  result.first = gradient;
  return result;
}

at::Tensor bias_gradient(const at::Tensor& bias, const at::Tensor& rows) {
  return bias.defined() ? rows.sum(1) : rows.new_empty({0});
}

Gradients operand_gradients(const Layer& layer, const at::Tensor& states,
                            const StepGradients& steps,
                            const GateExchange& exchange, const Group& group) {
  const std::int64_t columns = layer.steps() * layer.batch();
  const at::Tensor recurrent = steps.recurrent.view({layer.rows(), columns});
  const at::Tensor input =
      layer.cell().same_gradient()
          ? recurrent
          : exchange
                .to_rows(steps.input.view(
                    {layer.cell().gates(), layer.units(), columns}))
                .view({layer.rows(), columns});
  const at::Tensor before =
      all_gather(layer.before_steps(layer.h, states), group)
          .view({layer.w_hh.size(1), columns});
  at::Tensor input_gradient =
      at::mm(input.t(), layer.w_ih)
          .view({layer.steps(), layer.batch(), layer.input.size(2)});
  if (layer.batch_first) input_gradient = input_gradient.transpose(0, 1);
  return {
      input_gradient,
      Layer::state(steps.first.h),
      layer.c.defined() ? Layer::state(steps.first.c) : input.new_empty({0}),
      at::mm(input, layer.input_columns().t()),
      at::mm(recurrent, before.t()),
      bias_gradient(layer.b_ih, input),
      bias_gradient(layer.b_hh, recurrent)};
}

Gradients backward_kernel(at::TensorList gradients, at::TensorList results,
                          const at::Tensor& input, const at::Tensor& h,
                          const Optional& c, const at::Tensor& w_ih,
                          const at::Tensor& w_hh, const Optional& b_ih,
                          const Optional& b_hh, bool batch_first,
                          const std::string& group_name) {
  const Layer layer =
      make_layer(input, h, c, w_ih, w_hh, b_ih, b_hh, batch_first);
  const Group group = find_group(group_name);
  const GateExchange exchange(group, layer.cell().gates());
  const at::Tensor states = layer.from_output(results[0]);
  const StepGradients steps = run_steps(
      layer, states, results[1], layer.from_output(gradients[0]),
      {Layer::columns(gradients[1]),
       layer.c.defined() ? Layer::columns(gradients[2]) : at::Tensor()},
      exchange, group);
  return operand_gradients(layer, states, steps, exchange, group);
}

Gradients backward_meta(at::TensorList /*gradients*/,
                        at::TensorList /*results*/, const at::Tensor& input,
                        const at::Tensor& h, const Optional& c,
                        const at::Tensor& w_ih, const at::Tensor& w_hh,
                        const Optional& b_ih, const Optional& b_hh,
                        bool /*batch_first*/, const std::string& /*group*/) {
  const auto like = [&](const Optional& operand) {
    return operand ? at::empty(operand->sizes(), input.options())
                   : at::empty({0}, input.options());
  };
  return {like(input), like(h),    like(c),   like(w_ih),
          like(w_hh),  like(b_ih), like(b_hh)};
}

// --- Autograd ----------------------------------------------------------------

template <typename Kernel>
auto operator_named(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<Kernel>();
}

Optional optional(const at::Tensor& tensor) {
  return tensor.defined() ? Optional(tensor) : std::nullopt;
}

struct RecurrentShard : torch::autograd::Function<RecurrentShard> {
  static torch::autograd::variable_list forward(
      AutogradContext* context, const at::Tensor& input, const at::Tensor& h,
      const Optional& c, const at::Tensor& w_ih, const at::Tensor& w_hh,
      const Optional& b_ih, const Optional& b_hh, bool batch_first,
      const std::string& group) {
    static const auto op =
        operator_named<decltype(forward_kernel)>("tensoropt::_recurrent_shard");
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [output, h_n, c_n, saved] =
        op.call(input, h, c, w_ih, w_hh, b_ih, b_hh, batch_first, group);
    context->save_for_backward(
        {output, saved, input, h, c.value_or(at::Tensor()), w_ih, w_hh,
         b_ih.value_or(at::Tensor()), b_hh.value_or(at::Tensor())});
    context->saved_data["batch_first"] = batch_first;
    context->saved_data["group"] = group;
    context->mark_non_differentiable({saved});
    return {output, h_n, c_n, saved};
  }

  static torch::autograd::variable_list backward(
      AutogradContext* context, torch::autograd::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "tensoropt: sharded recurrent layers cannot be differentiated "
                "twice");
    static const auto op = operator_named<decltype(backward_kernel)>(
        "tensoropt::_recurrent_shard_backward");
    const auto saved = context->get_saved_variables();
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [input, h, c, w_ih, w_hh, b_ih, b_hh] =
        op.call({gradients[0], gradients[1], gradients[2]},
                {saved[0], saved[1]}, saved[2], saved[3], optional(saved[4]),
                saved[5], saved[6], optional(saved[7]), optional(saved[8]),
                context->saved_data["batch_first"].toBool(),
                context->saved_data["group"].toStringRef());
    const auto given = [&](const at::Tensor& gradient, int operand) {
      return saved[operand].defined() ? gradient : at::Tensor();
    };
    return {input,          h,  given(c, 4), w_ih, w_hh, given(b_ih, 7),
            given(b_hh, 8), {}, {}};
  }
};

LayerResult recurrent_autograd(const at::Tensor& input, const at::Tensor& h,
                               const Optional& c, const at::Tensor& w_ih,
                               const at::Tensor& w_hh, const Optional& b_ih,
                               const Optional& b_hh, bool batch_first,
                               const std::string& group) {
  const auto results = RecurrentShard::apply(input, h, c, w_ih, w_hh, b_ih,
                                             b_hh, batch_first, group);
  return {results[0], results[1], results[2], results[3]};
}

// --- The operators that plans call -------------------------------------------

LayerResult call_forward(const at::Tensor& input, const at::Tensor& h,
                         const Optional& c, const at::Tensor& w_ih,
                         const at::Tensor& w_hh, const Optional& b_ih,
                         const Optional& b_hh, bool batch_first,
                         const std::string& group) {
  static const auto op =
      operator_named<decltype(forward_kernel)>("tensoropt::_recurrent_shard");
  return op.call(input, h, c, w_ih, w_hh, b_ih, b_hh, batch_first, group);
}

using Lstm = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Gru = std::tuple<at::Tensor, at::Tensor>;

Lstm lstm_bias(const at::Tensor& input, const at::Tensor& h,
               const at::Tensor& c, const at::Tensor& w_ih,
               const at::Tensor& w_hh, const Optional& b_ih,
               const Optional& b_hh, bool batch_first,
               const std::string& group) {
  const auto [output, h_n, c_n, saved] =
      call_forward(input, h, c, w_ih, w_hh, b_ih, b_hh, batch_first, group);
  return {output, h_n, c_n};
}

Lstm lstm(const at::Tensor& input, const at::Tensor& h, const at::Tensor& c,
          const at::Tensor& w_ih, const at::Tensor& w_hh, bool batch_first,
          const std::string& group) {
  return lstm_bias(input, h, c, w_ih, w_hh, {}, {}, batch_first, group);
}

Gru gru_bias(const at::Tensor& input, const at::Tensor& h,
             const at::Tensor& w_ih, const at::Tensor& w_hh,
             const Optional& b_ih, const Optional& b_hh, bool batch_first,
             const std::string& group) {
  const auto [output, h_n, c_n, saved] =
      call_forward(input, h, {}, w_ih, w_hh, b_ih, b_hh, batch_first, group);
  return {output, h_n};
}

Gru gru(const at::Tensor& input, const at::Tensor& h, const at::Tensor& w_ih,
        const at::Tensor& w_hh, bool batch_first, const std::string& group) {
  return gru_bias(input, h, w_ih, w_hh, {}, {}, batch_first, group);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "lstm_shard(Tensor input, Tensor h, Tensor c, Tensor w_ih, Tensor w_hh, "
      "bool batch_first, str group) -> (Tensor, Tensor, Tensor)",
      lstm);
  library.def(
      "lstm_shard.bias(Tensor input, Tensor h, Tensor c, Tensor w_ih, "
      "Tensor w_hh, Tensor? b_ih, Tensor? b_hh, bool batch_first, str group) "
      "-> (Tensor, Tensor, Tensor)",
      lstm_bias);
  library.def(
      "gru_shard(Tensor input, Tensor h, Tensor w_ih, Tensor w_hh, "
      "bool batch_first, str group) -> (Tensor, Tensor)",
      gru);
  library.def(
      "gru_shard.bias(Tensor input, Tensor h, Tensor w_ih, Tensor w_hh, "
      "Tensor? b_ih, Tensor? b_hh, bool batch_first, str group) -> "
      "(Tensor, Tensor)",
      gru_bias);
  library.def(
      "_recurrent_shard(Tensor input, Tensor h, Tensor? c, Tensor w_ih, "
      "Tensor w_hh, Tensor? b_ih, Tensor? b_hh, bool batch_first, str group) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "_recurrent_shard_backward(Tensor[] gradients, Tensor[] results, "
      "Tensor input, Tensor h, Tensor? c, Tensor w_ih, Tensor w_hh, "
      "Tensor? b_ih, Tensor? b_hh, bool batch_first, str group) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("_recurrent_shard", forward_kernel);
  library.impl("_recurrent_shard_backward", backward_kernel);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("_recurrent_shard", forward_meta);
  library.impl("_recurrent_shard_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("_recurrent_shard", recurrent_autograd);
}

}  // namespace tensoropt::recurrent_shard_op
