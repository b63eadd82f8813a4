// tensoropt::embedding_bag_shard(weight, indices, offsets, per_sample_weights,
//                                mode, include_last_offset, padding_idx,
//                                row_offset, first_bag, num_bags)
//
// What aten::embedding_bag gives as its first output, of a part of the bags
// and of the rows: `num_bags` bags from `first_bag` on, and a `weight` [rows,
// d] that holds the rows from `row_offset` on. Indices and offsets are whole.
// Other ranks' rows count as zeros, so that the sum over the ranks that share
// the table is the result: modes 0 (sum) and 1 (mean) have that, and row_offset
// is -1 if the table is whole. The other three outputs are empty. Autograd sees
// the ATen calls inside.
//
// tensoropt::embedding_bag_rows(weight, indices, per_sample_weights, mode,
//                               padding_idx, row_offset) -> Tensor
//
// The same of bags that are the rows of `indices` [b, t], and all of these.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace tensoropt::embedding_bag_op {

namespace {

constexpr std::int64_t kSum = 0;
constexpr std::int64_t kMean = 1;

using Weights = std::optional<at::Tensor>;
using Outputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Bags as aten::embedding_bag takes them, and where each begins and ends.
struct Bags {
  at::Tensor indices;
  at::Tensor begins;
  at::Tensor ends;
  Weights weights;
};

using Bounds = std::tuple<std::int64_t, std::int64_t>;

// Where the indices of the bags from `first` to before `last` begin and end.
Bounds bounds_kernel(const at::Tensor& offsets, std::int64_t first,
                     std::int64_t last, std::int64_t num_indices) {
  const auto position = [&](std::int64_t bag) {
    return bag < offsets.size(0) ? offsets[bag].item<std::int64_t>()
                                 : num_indices;
  };
  return {position(first), position(last)};
}

// Meta tensors have no numbers; shapes of results do not depend on them.
Bounds bounds_meta(const at::Tensor& /*offsets*/, std::int64_t /*first*/,
                   std::int64_t /*last*/, std::int64_t num_indices) {
  return {0, num_indices};
}

Bounds bounds_of(const at::Tensor& offsets, std::int64_t first,
                 std::int64_t last, std::int64_t num_indices) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tensoropt::_bag_bounds", "")
                             .typed<decltype(bounds_kernel)>();
  return op.call(offsets, first, last, num_indices);
}

Bags part_of_bags(const at::Tensor& indices, const at::Tensor& offsets,
                  const Weights& weights, std::int64_t first_bag,
                  std::int64_t num_bags) {
  const auto [begin, end] =
      bounds_of(offsets, first_bag, first_bag + num_bags, indices.size(0));
  Bags bags;
  bags.indices = indices.slice(0, begin, end);
  bags.begins = offsets.slice(0, first_bag, first_bag + num_bags) - begin;
  bags.ends = at::cat(
      {bags.begins.slice(0, 1),
       at::full({num_bags > 0 ? 1 : 0}, end - begin, bags.begins.options())});
  if (weights) bags.weights = weights->slice(0, begin, end);
  return bags;
}

// Sums over this rank's rows: the others have weight 0.
at::Tensor rows_of_shard(const at::Tensor& weight, const Bags& bags,
                         std::int64_t mode, std::int64_t row_offset) {
  TORCH_CHECK_VALUE(mode == kSum || mode == kMean,
                    "bags of a table that is split by rows: it needs mode 0 "
                    "(sum) or 1 (mean), got ",
                    mode);
  const at::Tensor rows = bags.indices - row_offset;
  const at::Tensor inside = (rows >= 0).logical_and_(rows < weight.size(0));
  at::Tensor factors = inside.to(weight.scalar_type());
  if (bags.weights) factors = factors * *bags.weights;
  const at::Tensor sums = std::get<0>(at::embedding_bag(
      weight, rows.masked_fill(inside.logical_not(), 0), bags.begins,
      /*scale_grad_by_freq=*/false, kSum, /*sparse=*/false, factors));
  if (mode == kSum) return sums;
  const at::Tensor sizes = (bags.ends - bags.begins).clamp_min(1);
  return (sums / sizes.unsqueeze(1)).to(sums.scalar_type());
}

at::Tensor result_of(const at::Tensor& weight, const Bags& bags,
                     std::int64_t mode, std::int64_t padding_idx,
                     std::int64_t row_offset) {
  if (row_offset >= 0) return rows_of_shard(weight, bags, mode, row_offset);
  std::optional<std::int64_t> padding;
  if (padding_idx >= 0) padding = padding_idx;
  return std::get<0>(at::embedding_bag(
      weight, bags.indices, bags.begins, /*scale_grad_by_freq=*/false, mode,
      /*sparse=*/false, bags.weights, /*include_last_offset=*/false, padding));
}

Outputs embedding_bag_shard(const at::Tensor& weight, const at::Tensor& indices,
                            const at::Tensor& offsets, const Weights& weights,
                            std::int64_t mode, bool include_last_offset,
                            std::int64_t padding_idx, std::int64_t row_offset,
                            std::int64_t first_bag, std::int64_t num_bags) {
  const at::Tensor begins =
      include_last_offset ? offsets.slice(0, 0, -1) : offsets;
  const Bags bags = part_of_bags(indices, begins, weights, first_bag, num_bags);
  const at::Tensor none = at::empty({0}, indices.options());
  return {result_of(weight, bags, mode, padding_idx, row_offset), none, none,
          none};
}

at::Tensor embedding_bag_rows(const at::Tensor& weight,
                              const at::Tensor& indices, const Weights& weights,
                              std::int64_t mode, std::int64_t padding_idx,
                              std::int64_t row_offset) {
  TORCH_CHECK_VALUE(
      indices.dim() == 2 && (!weights || weights->sizes() == indices.sizes()),
      "bags that are rows need indices [bags, indices of each], "
      "and weights of that shape, got indices of ",
      indices.sizes());
  Bags bags;
  bags.indices = indices.reshape(-1);
  bags.begins =
      at::arange(indices.size(0), indices.options()) * indices.size(1);
  bags.ends = bags.begins + indices.size(1);
  if (weights) bags.weights = weights->reshape(-1);
  return result_of(weight, bags, mode, padding_idx, row_offset);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "embedding_bag_shard(Tensor weight, Tensor indices, Tensor offsets, "
      "Tensor? per_sample_weights, int mode, bool include_last_offset, "
      "int padding_idx, int row_offset, int first_bag, int num_bags) -> "
      "(Tensor, Tensor, Tensor, Tensor)",
      embedding_bag_shard);
  library.def(
      "embedding_bag_rows(Tensor weight, Tensor indices, "
      "Tensor? per_sample_weights, int mode, int padding_idx, "
      "int row_offset=-1) -> Tensor",
      embedding_bag_rows);
  library.def(
      "_bag_bounds(Tensor offsets, int first, int last, int num_indices) -> "
      "(int, int)");
}
// Kernels that look at numbers are those of devices, see expert_exchange_op.cc.
TORCH_LIBRARY_IMPL(tensoropt, CPU, library) {
  library.impl("_bag_bounds", bounds_kernel);
}
TORCH_LIBRARY_IMPL(tensoropt, CUDA, library) {
  library.impl("_bag_bounds", bounds_kernel);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("_bag_bounds", bounds_meta);
}

}  // namespace tensoropt::embedding_bag_op
