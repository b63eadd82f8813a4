// tensoropt::swap_with_mirror(x, group)
//
// What the mirror image of this rank has: of the n ranks of the group, the one
// at n - 1 - rank, which gets `x`. All ranks have tensors of one shape.
// Gradients go back the same way.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <vector>

#include "runtime/collectives.h"

namespace tensoropt::mirror_op {

namespace {

using torch::autograd::AutogradContext;

at::Tensor swap_with_mirror(const at::Tensor& x, const std::string& name) {
  const Group group = find_group(name);
  std::vector<std::int64_t> counts(group->getSize(), 0);
  counts[group->getSize() - 1 - group->getRank()] = x.numel();
  return all_to_all(x.contiguous().flatten(), counts, counts, group)
      .view(x.sizes());
}

at::Tensor swap_with_mirror_meta(const at::Tensor& x,
                                 const std::string& /*group*/) {
  return at::empty(x.sizes(), x.options());
}

at::Tensor call_swap(const at::Tensor& x, const std::string& group) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("tensoropt::swap_with_mirror", "")
          .typed<decltype(swap_with_mirror)>();
  return op.call(x, group);
}

struct SwapWithMirror : torch::autograd::Function<SwapWithMirror> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::string& group) {
    context->saved_data["group"] = group;
    return call_swap(x, group);
  }

  static torch::autograd::variable_list backward(
      AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    TORCH_CHECK(!(at::GradMode::is_enabled() && gradients[0].requires_grad()),
                "tensoropt::swap_with_mirror cannot be differentiated twice");
    const auto& group = context->saved_data["group"].toStringRef();
    return {call_swap(gradients[0], group), {}};
  }
};

at::Tensor swap_with_mirror_autograd(const at::Tensor& x,
                                     const std::string& group) {
  return SwapWithMirror::apply(x, group);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def("swap_with_mirror(Tensor x, str group) -> Tensor");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("swap_with_mirror", swap_with_mirror);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("swap_with_mirror", swap_with_mirror_meta);
}
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("swap_with_mirror", swap_with_mirror_autograd);
}

}  // namespace tensoropt::mirror_op
