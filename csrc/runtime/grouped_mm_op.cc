// tensoropt::grouped_mm_shard(x, weight, offsets, first_group)
//
// Products of groups of rows, [t, k] x [g, k, n] -> [t, n], of which this rank
// has the groups from `first_group` on: `weight` holds their matrices. The rows
// of group i, counted over all ranks, end before offsets[i]; `x` and `offsets`
// are whole. Rows of other ranks' groups, and those after the last group, give
// zeros, so that the sum over the ranks is the product: the result is Partial
// there. Reading where groups end waits for the device once. Autograd sees the
// ATen calls inside, which save views of `x` and `weight`.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

namespace tensoropt::grouped_mm_op {

namespace {

// Sizes of the blocks of rows: before the first group, of each group, and after
// the last one.
std::vector<std::int64_t> sizes_kernel(const at::Tensor& offsets,
                                       std::int64_t first_group,
                                       std::int64_t num_groups,
                                       std::int64_t num_rows) {
  const at::Tensor ends = offsets.to(at::kCPU, at::kLong).contiguous();
  const std::int64_t* end = ends.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> sizes;
  std::int64_t start = first_group > 0 ? end[first_group - 1] : 0;
  sizes.push_back(start);
  for (std::int64_t i = first_group; i < first_group + num_groups; ++i) {
    sizes.push_back(end[i] - start);
    start = end[i];
  }
  sizes.push_back(num_rows - start);
  return sizes;
}

// Meta tensors have no numbers; shapes of results do not depend on them.
std::vector<std::int64_t> sizes_meta(const at::Tensor& /*offsets*/,
                                     std::int64_t /*first_group*/,
                                     std::int64_t num_groups,
                                     std::int64_t num_rows) {
  std::vector<std::int64_t> sizes(num_groups + 2, 0);
  sizes.back() = num_rows;
  return sizes;
}

std::vector<std::int64_t> sizes_of(const at::Tensor& offsets,
                                   std::int64_t first_group,
                                   std::int64_t num_groups,
                                   std::int64_t num_rows) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tensoropt::_group_sizes", "")
                             .typed<decltype(sizes_kernel)>();
  return op.call(offsets, first_group, num_groups, num_rows);
}

void check_operands(const at::Tensor& x, const at::Tensor& weight,
                    const at::Tensor& offsets, std::int64_t first_group) {
  TORCH_CHECK_VALUE(
      x.dim() == 2 && weight.dim() == 3 && x.size(1) == weight.size(1),
      "grouped_mm_shard: x has to be [t, k] and weight [g, k, n], got ",
      x.sizes(), " and ", weight.sizes());
  TORCH_CHECK_VALUE(offsets.dim() == 1 && first_group >= 0 &&
                        first_group + weight.size(0) <= offsets.size(0),
                    "grouped_mm_shard: offsets ", offsets.sizes(),
                    " have to be those of all groups, but this rank has ",
                    weight.size(0), " from ", first_group, " on");
}

at::Tensor grouped_mm_shard(const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& offsets,
                            std::int64_t first_group) {
  check_operands(x, weight, offsets, first_group);
  const auto sizes = sizes_of(offsets, first_group, weight.size(0), x.size(0));
  // One node of backward each, which puts the gradient together once.
  const std::vector<at::Tensor> rows = x.split_with_sizes(sizes, 0);
  const std::vector<at::Tensor> matrices = weight.unbind(0);
  const auto zeros = [&](std::int64_t count) {
    return at::zeros({count, weight.size(2)}, x.options());
  };
  std::vector<at::Tensor> results{zeros(sizes.front())};
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    results.push_back(rows[i + 1].mm(matrices[i]));
  }
  results.push_back(zeros(sizes.back()));
  return at::cat(results, 0);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "grouped_mm_shard(Tensor x, Tensor weight, Tensor offsets, "
      "int first_group) -> Tensor",
      grouped_mm_shard);
  library.def(
      "_group_sizes(Tensor offsets, int first_group, int num_groups, "
      "int num_rows) -> int[]");
}
// Not for all tensors: those without memory take the meta kernel.
TORCH_LIBRARY_IMPL(tensoropt, CPU, library) {
  library.impl("_group_sizes", sizes_kernel);
}
TORCH_LIBRARY_IMPL(tensoropt, CUDA, library) {
  library.impl("_group_sizes", sizes_kernel);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("_group_sizes", sizes_meta);
}

}  // namespace tensoropt::grouped_mm_op
