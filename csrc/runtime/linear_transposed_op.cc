// tensoropt::linear_transposed(input, weight, bias)
//
// A linear layer whose weight has its inputs first: input [..., k], weight
// [k, n] and bias [n] give [..., n]. It is the call of aten::linear with the
// transposed weight, so that its gradient is one of the weight as it is.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>

namespace tensoropt::linear_transposed_op {

namespace {

at::Tensor linear_transposed(const at::Tensor& input, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias) {
  TORCH_CHECK_VALUE(weight.dim() == 2,
                    "linear_transposed: the weight has shape ", weight.sizes(),
                    "; give [inputs, outputs]");
  return at::linear(input, weight.t(), bias);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "linear_transposed(Tensor input, Tensor weight, Tensor? bias=None) -> "
      "Tensor",
      linear_transposed);
}

}  // namespace tensoropt::linear_transposed_op
