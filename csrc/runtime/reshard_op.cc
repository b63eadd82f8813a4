// tensoropt::reshard(x, forward, forward_groups, backward, backward_groups,
//                    dtype, reduce_dtype)
//
// Runs the forward program on the value and, in backward, the backward program
// on the gradient, whose layouts are its own: the backward program is not the
// mirror image. An empty program changes nothing; the result then is a view.
// Where there is no gradient, on all ranks alike, its program is not run. The
// gradient of a gradient lies as the value does, so that where backward is
// differentiated, its backward runs the forward program, and so on.
// The value is cast to `dtype`, if it is given, before its program runs, and
// the gradient to `reduce_dtype`.
//
// tensoropt::ParameterQueue(most_under_way, bucket_bytes, shard_bytes)
//     .number() -> queue
// tensoropt::await_gradients(xs, queue, slots) -> xs
// tensoropt::begin_value(x, forward, forward_groups, queue, slot, dtype)
// tensoropt::begin_gathers(xs, dims, group, queue, slots, dtype)
// tensoropt::put_value(value, queue, slot)
// tensoropt::take_value(x, queue, slot) -> value
// tensoropt::reshard_parameter(x, forward, forward_groups, backward,
//                              backward_groups, queue, slot, dtype,
//                              reduce_dtype)
//
// The same for parameters, whose values are known before and whose gradients
// nobody needs before the end of backward. begin_value begins the forward
// program ahead of its use, begin_gathers one collective in place of the
// programs of several; put_value gives a value that is there already.
// take_value waits for what was begun; `x` says where it runs. In backward the
// program of the gradient is only begun; await_gradients, which stands between
// the parameters and their use, waits for it. It comes first in the graph, and
// autograd runs what came first only when nothing else is ready: at the end of
// backward. `slot` numbers the parameters. Where backward is differentiated
// programs of gradients run where they are.
//
// tensoropt::program(steps, groups) -> number
// tensoropt::run_program(x, program, dtype) -> value
// tensoropt::begin_gradient(gradient, steps, groups, queue, slot)
// tensoropt::begin_gradients(gradients, queue, slots, programs)
// tensoropt::take_gradients(queue, slots) -> gradients
//
// What is called below autograd, where programs are named by numbers, too: a
// reshard, by a program that is not empty; the beginning of a gradient, or of
// several one after the other; the end of all that are taken.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/autograd_calls.h"
#include "runtime/gradient_program.h"
#include "runtime/parameter_queue.h"
#include "runtime/program.h"
#include "runtime/second_derivatives.h"

namespace tensoropt::reshard_op {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Queue = ParameterQueue::Pointer;
using QueueNumber = std::int64_t;
using Strings = std::vector<std::string>;
using DType = std::optional<at::ScalarType>;

at::Tensor cast(const at::Tensor& x, DType dtype) {
  return dtype ? x.to(*dtype) : x;
}

at::Tensor reshard(const at::Tensor& x, at::IntArrayRef forward,
                   const Strings& forward_groups, at::IntArrayRef /*backward*/,
                   const Strings& /*backward_groups*/, DType dtype,
                   DType /*reduce_dtype*/) {
  Program program(forward, forward_groups);
  const at::Tensor value = cast(x, dtype);
  if (!program.empty()) return run(std::move(program), value);
  return value.is_same(x) ? x.alias() : value;
}

at::Tensor reshard_meta(const at::Tensor& x, at::IntArrayRef forward,
                        const Strings& forward_groups,
                        at::IntArrayRef /*backward*/,
                        const Strings& /*backward_groups*/, DType dtype,
                        DType /*reduce_dtype*/) {
  const Program program(forward, forward_groups);
  const auto options = x.options().dtype(dtype.value_or(x.scalar_type()));
  if (program.empty() && options.dtype() == x.dtype()) return x.alias();
  return at::empty(program.output_shape(x.sizes()), options);
}

at::Tensor run_program(const at::Tensor& x, std::int64_t program, DType dtype) {
  return run(Program::find(program), cast(x, dtype));
}

at::Tensor reshard_below_autograd(const at::Tensor& x, at::IntArrayRef forward,
                                  const Strings& forward_groups, DType dtype) {
  return call_below_autograd<reshard>("tensoropt::reshard", x, forward,
                                      forward_groups, at::IntArrayRef(),
                                      Strings(), dtype, DType());
}

void begin_value(const at::Tensor& x, at::IntArrayRef steps,
                 const Strings& groups, QueueNumber queue, std::int64_t slot,
                 DType dtype) {
  // What is under way must not hold the graph, which holds the queue.
  ParameterQueue::find(queue)->begin_value(slot, Program(steps, groups),
                                           cast(x.detach(), dtype));
}

void begin_value_autograd(const at::Tensor& x, at::IntArrayRef steps,
                          const Strings& groups, QueueNumber queue,
                          std::int64_t slot, DType dtype) {
  call_below_autograd<begin_value>("tensoropt::begin_value", x, steps, groups,
                                   queue, slot, dtype);
}

void begin_gathers(at::TensorList xs, at::IntArrayRef dims,
                   const std::string& group, QueueNumber queue,
                   at::IntArrayRef slots, DType dtype) {
  TORCH_CHECK_VALUE(xs.size() == slots.size(), xs.size(),
                    " tensors are gathered for ", slots.size(), " slots");
  std::vector<at::Tensor> parts;
  for (const at::Tensor& x : xs) parts.push_back(cast(x.detach(), dtype));
  ParameterQueue::find(queue)->begin_values(slots.vec(),
                                            GatherBucket(parts, dims, group));
}

void begin_gathers_autograd(at::TensorList xs, at::IntArrayRef dims,
                            const std::string& group, QueueNumber queue,
                            at::IntArrayRef slots, DType dtype) {
  call_below_autograd<begin_gathers>("tensoropt::begin_gathers", xs, dims,
                                     group, queue, slots, dtype);
}

void put_value(const at::Tensor& value, QueueNumber queue, std::int64_t slot) {
  // Every forward makes an output of its own of it.
  ParameterQueue::find(queue)->put_value(slot, value.detach());
}

void put_value_autograd(const at::Tensor& value, QueueNumber queue,
                        std::int64_t slot) {
  call_below_autograd<put_value>("tensoropt::put_value", value, queue, slot);
}

at::Tensor take_value(const at::Tensor& /*x*/, QueueNumber queue,
                      std::int64_t slot) {
  at::Tensor value = ParameterQueue::find(queue)->take_value(slot);
  TORCH_CHECK_VALUE(value.defined(), "no value was begun in slot ", slot);
  return value;
}

void begin_gradient(const at::Tensor& gradient, at::IntArrayRef steps,
                    const Strings& groups, QueueNumber queue,
                    std::int64_t slot) {
  ParameterQueue::find(queue)->begin_gradient(slot, Program(steps, groups),
                                              gradient);
}

void begin_gradient_below_autograd(const at::Tensor& gradient,
                                   at::IntArrayRef steps, const Strings& groups,
                                   QueueNumber queue, std::int64_t slot) {
  call_below_autograd<begin_gradient>("tensoropt::begin_gradient", gradient,
                                      steps, groups, queue, slot);
}

void begin_gradients(at::TensorList gradients, QueueNumber queue,
                     at::IntArrayRef slots, at::IntArrayRef programs) {
  TORCH_CHECK_VALUE(
      gradients.size() == slots.size() && slots.size() == programs.size(),
      gradients.size(), " gradients are begun in ", slots.size(), " slots by ",
      programs.size(), " programs");
  const Queue found = ParameterQueue::find(queue);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    found->begin_gradient(slots[i], Program::find(programs[i]), gradients[i]);
  }
}

std::vector<at::Tensor> take_gradients(QueueNumber queue,
                                       at::IntArrayRef slots) {
  const Queue found = ParameterQueue::find(queue);
  std::vector<at::Tensor> gradients;
  gradients.reserve(slots.size());
  for (const std::int64_t slot : slots) {
    gradients.push_back(found->take_gradient(slot));
    TORCH_CHECK_VALUE(gradients.back().defined(),
                      "no gradient was begun in slot ", slot);
  }
  return gradients;
}

std::vector<at::Tensor> take_gradients_below_autograd(QueueNumber queue,
                                                      at::IntArrayRef slots) {
  return call_below_autograd<take_gradients>("tensoropt::take_gradients", queue,
                                             slots);
}

// What was begun ahead, if it was: taken by the operator, whose call
// simulations see.
at::Tensor value_of(const at::Tensor& x, at::IntArrayRef forward,
                    const Strings& forward_groups, const Queue& queue,
                    std::int64_t slot, DType dtype) {
  if (queue && queue->has_value(slot)) {
    return call_below_autograd<take_value>(
        "tensoropt::take_value", x, ParameterQueue::number_of(queue), slot);
  }
  return reshard_below_autograd(x, forward, forward_groups, dtype);
}

// What backward needs, among what autograd saves.
struct Gradients : torch::CustomClassHolder {
  GradientProgram program;
  std::vector<std::int64_t> slots;
};
using SavedGradients = c10::intrusive_ptr<Gradients>;

constexpr auto kGradients = "gradients";

void save(AutogradContext* context, const SavedGradients& gradients) {
  context->set_materialize_grads(false);
  context->saved_data[kGradients] = c10::IValue::make_capsule(gradients);
}

SavedGradients saved_in(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Gradients>(
      context->saved_data[kGradients].toCapsule());
}

struct Reshard : torch::autograd::Function<Reshard> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            at::IntArrayRef forward,
                            const Strings& forward_groups,
                            at::IntArrayRef backward,
                            const Strings& backward_groups, const Queue& queue,
                            std::int64_t slot, DType dtype,
                            DType reduce_dtype) {
    const auto gradients = c10::make_intrusive<Gradients>();
    gradients->program = {backward.vec(), backward_groups, reduce_dtype,
                          queue,          forward.vec(),   forward_groups};
    gradients->slots = {slot};
    save(context, gradients);
    // An input that is returned becomes a view that autograd knows of.
    if (forward.empty() && dtype.value_or(x.scalar_type()) == x.scalar_type()) {
      return x;
    }
    return value_of(x, forward, forward_groups, queue, slot, dtype);
  }

  static variable_list backward(AutogradContext* context,
                                variable_list gradients) {
    const SavedGradients saved = saved_in(context);
    const at::Tensor gradient =
        saved->program.run(std::move(gradients[0]), saved->slots[0]);
    return {gradient, {}, {}, {}, {}, {}, {}, {}, {}};
  }
};

at::Tensor reshard_without_gradient(const at::Tensor& x,
                                    at::IntArrayRef forward,
                                    const Strings& forward_groups, DType dtype,
                                    const Queue& queue = {},
                                    std::int64_t slot = 0) {
  if (forward.empty() && dtype.value_or(x.scalar_type()) == x.scalar_type()) {
    return x.view_as(x);
  }
  return value_of(x, forward, forward_groups, queue, slot, dtype);
}

at::Tensor reshard_autograd(const at::Tensor& x, at::IntArrayRef forward,
                            const Strings& forward_groups,
                            at::IntArrayRef backward,
                            const Strings& backward_groups, DType dtype,
                            DType reduce_dtype) {
  if (!is_differentiated(x)) {
    return reshard_without_gradient(x, forward, forward_groups, dtype);
  }
  return Reshard::apply(x, forward, forward_groups, backward, backward_groups,
                        Queue(), std::int64_t{0}, dtype, reduce_dtype);
}

at::Tensor reshard_parameter(const at::Tensor& x, at::IntArrayRef forward,
                             const Strings& forward_groups,
                             at::IntArrayRef /*backward*/,
                             const Strings& /*backward_groups*/,
                             QueueNumber queue, std::int64_t slot, DType dtype,
                             DType /*reduce_dtype*/) {
  return reshard_without_gradient(x, forward, forward_groups, dtype,
                                  ParameterQueue::find(queue), slot);
}

at::Tensor reshard_parameter_autograd(
    const at::Tensor& x, at::IntArrayRef forward, const Strings& forward_groups,
    at::IntArrayRef backward, const Strings& backward_groups, QueueNumber queue,
    std::int64_t slot, DType dtype, DType reduce_dtype) {
  if (!is_differentiated(x)) {
    return reshard_without_gradient(x, forward, forward_groups, dtype,
                                    ParameterQueue::find(queue), slot);
  }
  return Reshard::apply(x, forward, forward_groups, backward, backward_groups,
                        ParameterQueue::find(queue), slot, dtype, reduce_dtype);
}

struct AwaitGradients : torch::autograd::Function<AwaitGradients> {
  static variable_list forward(AutogradContext* context, at::TensorList xs,
                               const Queue& queue, at::IntArrayRef slots) {
    const auto gradients = c10::make_intrusive<Gradients>();
    gradients->program.queue = queue;
    gradients->slots = slots.vec();
    save(context, gradients);
    return xs.vec();
  }

  static variable_list backward(AutogradContext* context,
                                variable_list gradients) {
    const SavedGradients saved = saved_in(context);
    const Queue& queue = saved->program.queue;
    std::vector<std::size_t> awaited;
    std::vector<std::int64_t> slots;
    // Those that are differentiated have not waited.
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined() || !queue->has_gradient(saved->slots[i])) {
        continue;
      }
      awaited.push_back(i);
      slots.push_back(saved->slots[i]);
    }
    if (!awaited.empty()) {
      std::vector<at::Tensor> taken = take_gradients_below_autograd(
          ParameterQueue::number_of(queue), slots);
      for (std::size_t i = 0; i < awaited.size(); ++i) {
        gradients[awaited[i]] = std::move(taken[i]);
      }
    }
    gradients.resize(gradients.size() + 2);  // of queue and slots
    return gradients;
  }
};

std::vector<at::Tensor> await_gradients(at::TensorList xs,
                                        QueueNumber /*queue*/,
                                        at::IntArrayRef /*slots*/) {
  std::vector<at::Tensor> views;
  for (const at::Tensor& x : xs) views.push_back(x.view_as(x));
  return views;
}

bool have_one_node(at::TensorList xs) {
  const auto& first = xs[0].grad_fn();
  return first && std::all_of(xs.begin(), xs.end(), [&](const at::Tensor& x) {
           return x.grad_fn() == first;
         });
}

// Together if their gradients go to one node. Otherwise each by itself: a hook
// that waits for a gradient would be called where there is none.
std::vector<at::Tensor> await_gradients_autograd(at::TensorList xs,
                                                 QueueNumber queue,
                                                 at::IntArrayRef slots) {
  TORCH_CHECK_VALUE(xs.size() == slots.size(), xs.size(),
                    " gradients are awaited in ", slots.size(), " slots");
  const Queue awaited = ParameterQueue::find(queue);
  if (xs.empty()) return {};
  if (std::all_of(xs.begin(), xs.end(), is_differentiated) &&
      have_one_node(xs)) {
    return AwaitGradients::apply(xs, awaited, slots);
  }
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < xs.size(); ++i) {
    results.push_back(is_differentiated(xs[i])
                          ? AwaitGradients::apply(xs.slice(i, 1), awaited,
                                                  slots.slice(i, 1))[0]
                          : xs[i].view_as(xs[i]));
  }
  return results;
}

}  // namespace

}  // namespace tensoropt::reshard_op

namespace tensoropt {

at::Tensor GradientProgram::run(at::Tensor gradient, std::int64_t slot) const {
  if (!gradient.defined()) return {};
  if (is_differentiated_again()) {
    return reshard_again(gradient, steps, groups, value_steps, value_groups,
                         dtype, gradient.scalar_type());
  }
  gradient = reshard_op::cast(gradient, dtype);
  if (queue) {
    reshard_op::begin_gradient_below_autograd(
        gradient, steps, groups, ParameterQueue::number_of(queue), slot);
    return {};  // await_gradients has it
  }
  if (steps.empty()) return gradient;
  return reshard_op::reshard_below_autograd(gradient, steps, groups, {});
}

}  // namespace tensoropt

namespace tensoropt::reshard_op {

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.class_<ParameterQueue>("ParameterQueue")
      .def(torch::init<std::int64_t, std::int64_t, std::int64_t>())
      .def("number", &ParameterQueue::number_of);
  library.def(
      "reshard(Tensor(a) x, int[] forward, str[] forward_groups, "
      "int[] backward, str[] backward_groups, *, ScalarType? dtype=None, "
      "ScalarType? reduce_dtype=None) -> Tensor(a)");
  library.def(
      "reshard_parameter(Tensor(a) x, int[] forward, str[] forward_groups, "
      "int[] backward, str[] backward_groups, "
      "int queue, int slot, *, "
      "ScalarType? dtype=None, ScalarType? reduce_dtype=None) -> Tensor(a)");
  library.def(
      "begin_value(Tensor x, int[] forward, str[] forward_groups, "
      "int queue, int slot, *, "
      "ScalarType? dtype=None) -> ()");
  library.def(
      "begin_gathers(Tensor[] xs, int[] dims, str group, "
      "int queue, int[] slots, "
      "*, ScalarType? dtype=None) -> ()");
  library.def(
      "put_value(Tensor value, "
      "int queue, int slot) -> "
      "()");
  library.def(
      "take_value(Tensor x, "
      "int queue, int slot) -> "
      "Tensor");
  library.def(
      "begin_gradient(Tensor gradient, int[] steps, str[] groups, int queue, "
      "int slot) -> ()");
  library.def("program(int[] steps, str[] groups) -> int",
              [](at::IntArrayRef steps, const Strings& groups) {
                return Program::number_of(steps, groups);
              });
  library.def(
      "run_program(Tensor x, int program, ScalarType? dtype=None) -> Tensor");
  library.def(
      "begin_gradients(Tensor[] gradients, int queue, int[] slots, "
      "int[] programs) -> ()");
  library.def("take_gradients(int queue, int[] slots) -> Tensor[]");
  library.def(
      "await_gradients(Tensor(a)[] xs, int queue, int[] slots) -> "
      "Tensor(a)[]");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("reshard", reshard);
  library.impl("reshard_parameter", reshard_parameter);
  library.impl("begin_value", begin_value);
  library.impl("begin_gathers", begin_gathers);
  library.impl("put_value", put_value);
  library.impl("take_value", take_value);
  library.impl("begin_gradient", begin_gradient);
  library.impl("run_program", run_program);
  library.impl("begin_gradients", begin_gradients);
  library.impl("take_gradients", take_gradients);
  library.impl("await_gradients", await_gradients);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("reshard", reshard_meta);
}
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("reshard", reshard_autograd);
  library.impl("reshard_parameter", reshard_parameter_autograd);
  library.impl("begin_value", begin_value_autograd);
  library.impl("begin_gathers", begin_gathers_autograd);
  library.impl("put_value", put_value_autograd);
  library.impl("await_gradients", await_gradients_autograd);
}

}  // namespace tensoropt::reshard_op
