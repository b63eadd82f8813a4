// tensoropt::embedding_shard(weight, index, offset, padding_idx=-1)
//
// Looks up rows of a table that is split by rows: `weight` [rows, d] holds the
// rows from `offset` on. Indices of other rows give zeros, so that the sum over
// the ranks that share the table is the look-up: the result is Partial there.
// `index` and `padding_idx` count rows of the whole table; the row of
// `padding_idx` gets no gradient. Only the index is saved for backward.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace tensoropt {

namespace {

using torch::autograd::AutogradContext;

// Where an index lies in this shard.
struct LocalIndex {
  at::Tensor rows;     // 0 where outside
  at::Tensor outside;  // [..., 1]
};

LocalIndex local_index(const at::Tensor& index, std::int64_t offset,
                       std::int64_t num_rows) {
  at::Tensor rows = index - offset;
  const at::Tensor outside = (rows < 0).logical_or_(rows >= num_rows);
  return {rows.masked_fill_(outside, 0), outside.unsqueeze(-1)};
}

at::Tensor embedding_shard(const at::Tensor& weight, const at::Tensor& index,
                           std::int64_t offset, std::int64_t /*padding_idx*/) {
  TORCH_CHECK_VALUE(weight.dim() == 2,
                    "embedding_shard: weight has to be [rows, d], got ",
                    weight.sizes());
  const LocalIndex local = local_index(index, offset, weight.size(0));
  at::Tensor result = at::embedding(weight, local.rows);
  return result.masked_fill_(local.outside, 0);
}

struct EmbeddingShard : torch::autograd::Function<EmbeddingShard> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight,
                            const at::Tensor& index, std::int64_t offset,
                            std::int64_t padding_idx) {
    context->save_for_backward({index});
    context->saved_data["num_rows"] = weight.size(0);
    context->saved_data["offset"] = offset;
    context->saved_data["padding_idx"] = padding_idx;
    const at::AutoDispatchBelowADInplaceOrView guard;
    return embedding_shard(weight, index, offset, padding_idx);
  }

  static torch::autograd::variable_list backward(
      AutogradContext* context, torch::autograd::variable_list gradients) {
    const at::Tensor index = context->get_saved_variables()[0];
    const auto num_rows = context->saved_data["num_rows"].toInt();
    const auto padding_idx = context->saved_data["padding_idx"].toInt();
    LocalIndex local =
        local_index(index, context->saved_data["offset"].toInt(), num_rows);
    if (padding_idx >= 0) {
      local.outside.logical_or_(index.eq(padding_idx).unsqueeze(-1));
    }
    const at::Tensor gradient = at::embedding_dense_backward(
        gradients[0].masked_fill(local.outside, 0), local.rows, num_rows,
        /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
    return {gradient, {}, {}, {}};
  }
};

at::Tensor embedding_shard_autograd(const at::Tensor& weight,
                                    const at::Tensor& index,
                                    std::int64_t offset,
                                    std::int64_t padding_idx) {
  return EmbeddingShard::apply(weight, index, offset, padding_idx);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "embedding_shard(Tensor weight, Tensor index, int offset, "
      "int padding_idx=-1) -> Tensor");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("embedding_shard", embedding_shard);
}
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("embedding_shard", embedding_shard_autograd);
}

}  // namespace tensoropt
