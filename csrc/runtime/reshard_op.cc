// tensoropt::reshard(x, forward, forward_groups, backward, backward_groups)
//
// Runs the forward program on the value and, in backward, the backward program
// on the gradient, whose layouts are its own: the backward program is not the
// mirror image. An empty program changes nothing; the result then is a view.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "runtime/program.h"

namespace tensoropt {

namespace {

using torch::autograd::AutogradContext;
using Strings = std::vector<std::string>;

at::Tensor reshard(const at::Tensor& x, at::IntArrayRef forward,
                   const Strings& forward_groups, at::IntArrayRef /*backward*/,
                   const Strings& /*backward_groups*/) {
  const Program program(forward, forward_groups);
  return program.empty() ? x.alias() : run(program, x);
}

at::Tensor reshard_meta(const at::Tensor& x, at::IntArrayRef forward,
                        const Strings& forward_groups,
                        at::IntArrayRef /*backward*/,
                        const Strings& /*backward_groups*/) {
  const Program program(forward, forward_groups);
  if (program.empty()) return x.alias();
  return at::empty(program.output_shape(x.sizes()), x.options());
}

at::Tensor call_below_autograd(const at::Tensor& x, at::IntArrayRef forward,
                               const Strings& forward_groups) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tensoropt::reshard", "")
                             .typed<decltype(reshard)>();
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(x, forward, forward_groups, {}, Strings{});
}

struct Reshard : torch::autograd::Function<Reshard> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            at::IntArrayRef forward,
                            const Strings& forward_groups,
                            at::IntArrayRef backward,
                            const Strings& backward_groups) {
    context->saved_data["steps"] = backward;
    context->saved_data["groups"] = backward_groups;
    // An input that is returned becomes a view that autograd knows of.
    if (forward.empty()) return x;
    return call_below_autograd(x, forward, forward_groups);
  }

  static torch::autograd::variable_list backward(
      AutogradContext* context, torch::autograd::variable_list gradients) {
    at::Tensor gradient = std::move(gradients[0]);
    TORCH_CHECK(!(at::GradMode::is_enabled() && gradient.requires_grad()),
                "tensoropt::reshard cannot be differentiated twice");
    const auto steps = context->saved_data["steps"].toIntVector();
    if (!steps.empty()) {
      Strings groups;
      for (const auto& group : context->saved_data["groups"].toListRef()) {
        groups.push_back(group.toStringRef());
      }
      gradient = call_below_autograd(gradient, steps, groups);
    }
    return {gradient, {}, {}, {}, {}};
  }
};

at::Tensor reshard_autograd(const at::Tensor& x, at::IntArrayRef forward,
                            const Strings& forward_groups,
                            at::IntArrayRef backward,
                            const Strings& backward_groups) {
  if (!at::GradMode::is_enabled() || !x.requires_grad()) {
    if (forward.empty()) return x.view_as(x);
    return call_below_autograd(x, forward, forward_groups);
  }
  return Reshard::apply(x, forward, forward_groups, backward, backward_groups);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "reshard(Tensor x, int[] forward, str[] forward_groups, int[] backward, "
      "str[] backward_groups) -> Tensor");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("reshard", reshard);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("reshard", reshard_meta);
}
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("reshard", reshard_autograd);
}

}  // namespace tensoropt
