// tensoropt::balanced_causal_attention(query, key, value, dropout_p, scale,
//                                      enable_gqa, group)
//
// Causal attention of a block of query rows [..., rows, e] on each rank of the
// group, in the order of ranks, with keys and values of all positions: row i of
// a block that begins at row `first` sees the keys up to first + i. Later
// blocks see more keys. So the second half of a block is computed by the rank
// that has the block at the same distance from the other end
// (exchange_rows): every rank has early rows and late ones, and all take
// nearly as long, as long if `rows` is even. Autograd sees the calls inside.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "runtime/collectives.h"

namespace tensoropt::attention_op {

namespace {

// What a call of attention has but for its query.
struct Attention {
  const at::Tensor& key;
  const at::Tensor& value;
  double dropout_p;
  std::optional<double> scale;
  bool enable_gqa;

  // Keys that no row sees are left out.
  at::Tensor of_rows(const at::Tensor& query, std::int64_t first_row) const {
    const std::int64_t rows = query.size(-2);
    const std::int64_t seen = std::min(first_row + rows, key.size(-2));
    const at::Tensor keys = key.narrow(-2, 0, seen);
    const at::Tensor values = value.narrow(-2, 0, seen);
    // The first rows' mask is the usual one, for which there are fast kernels.
    if (first_row == 0) {
      return at::scaled_dot_product_attention(query, keys, values, {},
                                              dropout_p, /*is_causal=*/true,
                                              scale, enable_gqa);
    }
    const at::Tensor mask =
        at::ones({rows, seen}, query.options().dtype(at::kBool))
            .tril(first_row);
    return at::scaled_dot_product_attention(query, keys, values, mask,
                                            dropout_p, /*is_causal=*/false,
                                            scale, enable_gqa);
  }
};

// What the rank at the same distance from the other end has, which gets `x`;
// all ranks have tensors of one shape. Gradients go back the same way.
at::Tensor swap_with_mirror(const at::Tensor& x, const Group& group,
                            const std::string& name) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("tensoropt::exchange_rows", "")
          .typed<at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef,
                            const std::string&)>();
  std::vector<std::int64_t> counts(group->getSize(), 0);
  counts[group->getSize() - 1 - group->getRank()] = x.numel();
  return op.call(x.flatten(), counts, counts, name).view(x.sizes());
}

at::Tensor balanced_causal_attention(const at::Tensor& query,
                                     const at::Tensor& key,
                                     const at::Tensor& value, double dropout_p,
                                     std::optional<double> scale,
                                     bool enable_gqa, const std::string& name) {
  const Group group = find_group(name);
  const std::int64_t part = group->getRank();
  const std::int64_t mirror = group->getSize() - 1 - part;
  const Attention attention{key, value, dropout_p, scale, enable_gqa};
  const std::int64_t rows = query.size(-2);
  const std::int64_t late = rows / 2;
  const std::int64_t early = rows - late;
  const at::Tensor own =
      attention.of_rows(query.narrow(-2, 0, early), part * rows);
  if (late == 0) return own;
  const at::Tensor others =
      swap_with_mirror(query.narrow(-2, early, late), group, name);
  const at::Tensor result = attention.of_rows(others, mirror * rows + early);
  return at::cat({own, swap_with_mirror(result, group, name)}, -2);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "balanced_causal_attention(Tensor query, Tensor key, Tensor value, "
      "float dropout_p, float? scale, bool enable_gqa, str group) -> Tensor",
      balanced_causal_attention);
}

}  // namespace tensoropt::attention_op
