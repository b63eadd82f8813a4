// tensoropt::linear_blocks(input, weight, bias, transposed)
//
// A linear layer whose outputs are c blocks of n, such as queries, keys and
// values: input [..., k], weight [c, n, k] and bias [c, n] give [..., c, n]. A
// transposed weight is [k, c, n]. It is the call of aten::linear on the same
// memory seen with blocks joined, of a rank's part of the n as of all: one
// product, with the same numbers.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>

namespace tensoropt::linear_blocks_op {

namespace {

at::Tensor linear_blocks(const at::Tensor& input, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias,
                         bool transposed) {
  TORCH_CHECK_VALUE(weight.dim() == 3, "linear_blocks: the weight has shape ",
                    weight.sizes(),
                    "; give [blocks, outputs of a block, inputs], or inputs "
                    "first if it is transposed");
  const std::int64_t blocks = weight.size(transposed ? 1 : 0);
  const std::int64_t width = weight.size(transposed ? 2 : 1);
  const at::Tensor joined =
      transposed ? weight.flatten(1, 2).t() : weight.flatten(0, 1);
  std::optional<at::Tensor> joined_bias;
  if (bias.has_value() && bias->defined()) joined_bias = bias->flatten();
  return at::linear(input, joined, joined_bias).unflatten(-1, {blocks, width});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "linear_blocks(Tensor input, Tensor weight, Tensor? bias=None, "
      "bool transposed=False) -> Tensor",
      linear_blocks);
}

}  // namespace tensoropt::linear_blocks_op
