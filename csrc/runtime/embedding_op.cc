// tensoropt::embedding_shard(weight, index, offset, padding_idx=-1,
//                            wraps_at=0)
//
// Looks up rows of a table that is split by rows: `weight` [rows, ...] holds
// the rows from `offset` on. Indices of other rows give zeros, so that the sum
// over the ranks that share the table is the look-up: the result is Partial
// there. `index` and `padding_idx` count rows of the whole table; the row of
// `padding_idx` gets no gradient. Negative indices count from the end of a
// table of `wraps_at` rows, if that is not 0. Only the index is saved for
// backward.
//
// tensoropt::gather_shard(x, index, dim, offset)
//
// aten::gather from an `x` that holds the entries of `dim` from `offset` on, in
// the same way. Autograd sees the ATen calls inside.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <vector>

namespace tensoropt::embedding_op {

namespace {

using torch::autograd::AutogradContext;

// Where an index lies in this shard.
struct LocalIndex {
  at::Tensor rows;     // 0 where outside
  at::Tensor outside;  // of the same shape
};

LocalIndex local_index(const at::Tensor& index, std::int64_t offset,
                       std::int64_t num_rows, std::int64_t wraps_at = 0) {
  at::Tensor rows = index - offset;
  if (wraps_at > 0) rows.add_(index.lt(0).to(rows.scalar_type()), wraps_at);
  const at::Tensor outside = (rows < 0).logical_or_(rows >= num_rows);
  return {rows.masked_fill_(outside, 0), outside};
}

// Adds dims of size 1 for those of a row.
at::Tensor with_row_dims(const at::Tensor& mask, std::int64_t num_dims) {
  std::vector<std::int64_t> shape = mask.sizes().vec();
  shape.resize(shape.size() + num_dims, 1);
  return mask.view(shape);
}

at::Tensor embedding_shard(const at::Tensor& weight, const at::Tensor& index,
                           std::int64_t offset, std::int64_t /*padding_idx*/,
                           std::int64_t wraps_at) {
  TORCH_CHECK_VALUE(weight.dim() >= 1,
                    "embedding_shard: weight has to be [rows, ...], got a "
                    "scalar");
  const LocalIndex local = local_index(index, offset, weight.size(0), wraps_at);
  std::vector<std::int64_t> shape = index.sizes().vec();
  shape.insert(shape.end(), weight.sizes().begin() + 1, weight.sizes().end());
  at::Tensor result =
      weight.index_select(0, local.rows.reshape({-1})).view(shape);
  return result.masked_fill_(with_row_dims(local.outside, weight.dim() - 1), 0);
}

struct EmbeddingShard : torch::autograd::Function<EmbeddingShard> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight,
                            const at::Tensor& index, std::int64_t offset,
                            std::int64_t padding_idx, std::int64_t wraps_at) {
    context->save_for_backward({index});
    context->saved_data["shape"] = weight.sizes();
    context->saved_data["offset"] = offset;
    context->saved_data["padding_idx"] = padding_idx;
    context->saved_data["wraps_at"] = wraps_at;
    const at::AutoDispatchBelowADInplaceOrView guard;
    return embedding_shard(weight, index, offset, padding_idx, wraps_at);
  }

  static torch::autograd::variable_list backward(
      AutogradContext* context, torch::autograd::variable_list gradients) {
    const at::Tensor index = context->get_saved_variables()[0];
    const auto shape = context->saved_data["shape"].toIntVector();
    const auto padding_idx = context->saved_data["padding_idx"].toInt();
    LocalIndex local =
        local_index(index, context->saved_data["offset"].toInt(), shape[0],
                    context->saved_data["wraps_at"].toInt());
    if (padding_idx >= 0) local.outside.logical_or_(index.eq(padding_idx));
    const at::Tensor outside =
        with_row_dims(local.outside, std::ssize(shape) - 1);
    const std::int64_t row_elements =
        c10::multiply_integers(shape.begin() + 1, shape.end());
    const at::Tensor gradient = at::embedding_dense_backward(
        gradients[0]
            .masked_fill(outside, 0)
            .reshape({index.numel(), row_elements}),
        local.rows.reshape({-1}), shape[0], /*padding_idx=*/-1,
        /*scale_grad_by_freq=*/false);
    return {gradient.view(shape), {}, {}, {}, {}};
  }
};

at::Tensor embedding_shard_autograd(const at::Tensor& weight,
                                    const at::Tensor& index,
                                    std::int64_t offset,
                                    std::int64_t padding_idx,
                                    std::int64_t wraps_at) {
  return EmbeddingShard::apply(weight, index, offset, padding_idx, wraps_at);
}

at::Tensor gather_shard(const at::Tensor& x, const at::Tensor& index,
                        std::int64_t dim, std::int64_t offset) {
  const LocalIndex local = local_index(index, offset, x.size(dim));
  return at::gather(x, dim, local.rows).masked_fill(local.outside, 0);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "embedding_shard(Tensor weight, Tensor index, int offset, "
      "int padding_idx=-1, int wraps_at=0) -> Tensor");
  library.def(
      "gather_shard(Tensor x, Tensor index, int dim, int offset) -> Tensor",
      gather_shard);
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("embedding_shard", embedding_shard);
}
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("embedding_shard", embedding_shard_autograd);
}

}  // namespace tensoropt::embedding_op
