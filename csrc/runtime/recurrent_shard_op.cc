// tensoropt::lstm_shard(input, h, c, w_ih, w_hh, b_ih, b_hh, batch_first,
//                       group) -> (output, h_n, c_n)
// tensoropt::gru_shard(input, h, w_ih, w_hh, b_ih, b_hh, batch_first, group)
//     -> (output, h_n)
//
// tensoropt::lstm and tensoropt::gru (recurrent_op.cc) with H units that are
// split over the ranks of `group`, u on each: weights are [gates, u, i] and
// [gates, u, H], biases [gates, u] or none, h and c the states [1, b, u], as
// are the results. `input` is whole and its gradient a pending sum. Weights are
// never gathered: in each step ranks gather h (backward: reduce-scatter). The
// input part of the gates is computed for all steps at once.
//
// Saved for backward: the operands, the output, and for each unit and step 5
// (LSTM) or 4 (GRU) numbers. The output is a view of [u, t, b].

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "runtime/collectives.h"
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
  bool has_gates(const at::Tensor& weight) const {
    return weight.size(0) == cell().gates() && weight.size(1) == units();
  }

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
      layer.w_ih.dim() == 3 && layer.w_hh.dim() == 3 &&
          layer.has_gates(layer.w_ih) && layer.has_gates(layer.w_hh) &&
          layer.w_ih.size(2) == layer.input.size(2) &&
          layer.w_hh.size(2) % layer.units() == 0,
      "a sharded recurrent layer needs weights of ", layer.cell().gates(),
      " gates of ", layer.units(), " units, as its states have, got ",
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

// Gates stacked as rows.
at::Tensor rows_of(const at::Tensor& weight) { return weight.flatten(0, 1); }

// Of the gates, [gates, u, columns].
at::Tensor product(const at::Tensor& weight, const at::Tensor& columns,
                   const at::Tensor& bias) {
  const at::Tensor rows =
      bias.defined() ? at::addmm(bias.view({-1, 1}), rows_of(weight), columns)
                     : at::mm(rows_of(weight), columns);
  return rows.view({weight.size(0), weight.size(1), columns.size(1)});
}

// --- LayerResult
// -----------------------------------------------------------------

// The output, h_n, c_n, and what the cell saves, [saved, u, t, b].
using LayerResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

LayerResult run_forward(const Layer& layer, const Group& group) {
  const RecurrentCell& cell = layer.cell();
  const std::int64_t steps = layer.steps();
  const std::int64_t batch = layer.batch();
  const std::int64_t units = layer.units();
  const at::Tensor input =
      product(layer.w_ih, layer.input_columns(), layer.b_ih)
          .view({cell.gates(), units, steps, batch});
  CellState state{Layer::columns(layer.h), Layer::columns(layer.c)};
  at::Tensor states = at::empty({units, steps, batch}, input.options());
  at::Tensor saved =
      at::empty({cell.saved(), units, steps, batch}, input.options());
  for (std::int64_t t = 0; t < steps; ++t) {
    const at::Tensor whole = all_gather(state.h, group).flatten(0, 1);
    const CellStep step = cell.forward(
        input.select(2, t), product(layer.w_hh, whole, layer.b_hh), state);
    state = step.state;
    states.select(1, t).copy_(state.h);
    saved.select(2, t).copy_(step.saved);
  }
  return {layer.to_output(states), Layer::state(state.h),
          state.c.defined() ? Layer::state(state.c) : input.new_empty({0}),
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
  at::Tensor input;      // of the input part of the gates, [g, u, t, b]
  at::Tensor recurrent;  // of their recurrent part; for an LSTM it is the same
  CellState first;       // of the state before the first step, [u, b]
};

StepGradients run_steps(const Layer& layer, const at::Tensor& states,
                        const at::Tensor& saved, const at::Tensor& output,
                        CellState gradient, const Group& group) {
  const RecurrentCell& cell = layer.cell();
  const std::int64_t batch = layer.batch();
  const std::int64_t units = layer.units();
  const CellState first{Layer::columns(layer.h), Layer::columns(layer.c)};
  const at::Tensor whole_rows = rows_of(layer.w_hh).t();
  StepGradients result;
  result.recurrent =
      at::empty({cell.gates(), units, layer.steps(), batch}, saved.options());
  result.input = cell.same_gradient() ? result.recurrent
                                      : at::empty_like(result.recurrent);
  for (std::int64_t t = layer.steps() - 1; t >= 0; --t) {
    const CellState before =
        t == 0 ? first
               : CellState{states.select(1, t - 1),
                           cell.saved_c(saved.select(2, t - 1))};
    gradient.h = gradient.h + output.select(1, t);
    const CellGradient step =
        cell.backward(gradient, saved.select(2, t), before);
    gradient.h = reduce_scatter(
        at::mm(whole_rows, rows_of(step.recurrent)).view({-1, units, batch}),
        group);
    if (step.state.h.defined()) gradient.h += step.state.h;
    gradient.c = step.state.c;
    result.recurrent.select(2, t).copy_(step.recurrent);
    if (!cell.same_gradient()) result.input.select(2, t).copy_(step.input);
  }
  result.first = gradient;
  return result;
}

at::Tensor bias_gradient(const at::Tensor& bias, const at::Tensor& rows) {
  return bias.defined() ? rows.sum(1).view(bias.sizes()) : rows.new_empty({0});
}

Gradients operand_gradients(const Layer& layer, const at::Tensor& states,
                            const StepGradients& steps, const Group& group) {
  const std::int64_t columns = layer.steps() * layer.batch();
  const at::Tensor recurrent = steps.recurrent.view({layer.rows(), columns});
  const at::Tensor input = steps.input.view({layer.rows(), columns});
  const at::Tensor before =
      all_gather(layer.before_steps(layer.h, states), group)
          .view({layer.w_hh.size(2), columns});
  at::Tensor input_gradient =
      at::mm(input.t(), rows_of(layer.w_ih))
          .view({layer.steps(), layer.batch(), layer.input.size(2)});
  if (layer.batch_first) input_gradient = input_gradient.transpose(0, 1);
  return {
      input_gradient,
      Layer::state(steps.first.h),
      layer.c.defined() ? Layer::state(steps.first.c) : input.new_empty({0}),
      at::mm(input, layer.input_columns().t()).view(layer.w_ih.sizes()),
      at::mm(recurrent, before.t()).view(layer.w_hh.sizes()),
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
  const at::Tensor states = layer.from_output(results[0]);
  const StepGradients steps = run_steps(
      layer, states, results[1], layer.from_output(gradients[0]),
      {Layer::columns(gradients[1]),
       layer.c.defined() ? Layer::columns(gradients[2]) : at::Tensor()},
      group);
  return operand_gradients(layer, states, steps, group);
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
                "a recurrent layer (GRU, LSTM) whose rows or units are split "
                "cannot be differentiated twice (create_graph=True); plan with "
                "the layer whole on every device, or write its cells out");
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

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_shard(
    const at::Tensor& input, const at::Tensor& h, const at::Tensor& c,
    const at::Tensor& w_ih, const at::Tensor& w_hh, const Optional& b_ih,
    const Optional& b_hh, bool batch_first, const std::string& group) {
  const auto [output, h_n, c_n, saved] =
      call_forward(input, h, c, w_ih, w_hh, b_ih, b_hh, batch_first, group);
  return {output, h_n, c_n};
}

std::tuple<at::Tensor, at::Tensor> gru_shard(
    const at::Tensor& input, const at::Tensor& h, const at::Tensor& w_ih,
    const at::Tensor& w_hh, const Optional& b_ih, const Optional& b_hh,
    bool batch_first, const std::string& group) {
  const auto [output, h_n, c_n, saved] =
      call_forward(input, h, {}, w_ih, w_hh, b_ih, b_hh, batch_first, group);
  return {output, h_n};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "lstm_shard(Tensor input, Tensor h, Tensor c, Tensor w_ih, Tensor w_hh, "
      "Tensor? b_ih, Tensor? b_hh, bool batch_first, str group) -> "
      "(Tensor, Tensor, Tensor)",
      lstm_shard);
  library.def(
      "gru_shard(Tensor input, Tensor h, Tensor w_ih, Tensor w_hh, "
      "Tensor? b_ih, Tensor? b_hh, bool batch_first, str group) -> "
      "(Tensor, Tensor)",
      gru_shard);
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
