// tensoropt::causal_attention_rows(query, key, value, first_row, scale,
//                                  enable_gqa)
//
// Causal attention of a block of query rows [..., rows, e], the rows from
// `first_row` on, with keys and values of all positions: row i sees the keys up
// to first_row + i. Keys that no row sees are left out, so later blocks cost
// more. Autograd sees the ATen calls inside.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

namespace tensoropt::attention_op {

namespace {

at::Tensor causal_attention_rows(const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value,
                                 std::int64_t first_row,
                                 std::optional<double> scale, bool enable_gqa) {
  TORCH_CHECK_VALUE(first_row >= 0, "causal_attention_rows: the first row is ",
                    first_row);
  const std::int64_t rows = query.size(-2);
  const std::int64_t seen = std::min(first_row + rows, key.size(-2));
  const at::Tensor keys = key.narrow(-2, 0, seen);
  const at::Tensor values = value.narrow(-2, 0, seen);
  // The first block's mask is the usual one, for which there are fast kernels.
  if (first_row == 0) {
    return at::scaled_dot_product_attention(query, keys, values, {}, 0.0,
                                            /*is_causal=*/true, scale,
                                            enable_gqa);
  }
  const at::Tensor mask =
      at::ones({rows, seen}, query.options().dtype(at::kBool)).tril(first_row);
  return at::scaled_dot_product_attention(
      query, keys, values, mask, 0.0, /*is_causal=*/false, scale, enable_gqa);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "causal_attention_rows(Tensor query, Tensor key, Tensor value, "
      "int first_row, float? scale, bool enable_gqa) -> Tensor",
      causal_attention_rows);
}

}  // namespace tensoropt::attention_op
