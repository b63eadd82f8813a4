// tensoropt::masked_scatter_shard(x, mask, source, group)
//
// aten::masked_scatter where the ranks of `group` have one block each of the
// first dim of `x` and `mask`, in the order of ranks, and all of `source`: a
// rank takes what follows on that which the ranks before it take. Autograd sees
// the ATen calls inside.
//
// tensoropt::count_before(mask, group)
//
// How many elements of `mask` are true on the ranks before this one, a scalar.

#include <torch/library.h>

#include <string>

#include "runtime/collectives.h"

namespace tensoropt::masked_scatter_op {

namespace {

at::Tensor count_before(const at::Tensor& mask, const std::string& name) {
  const at::Tensor count = mask.sum(at::kLong).reshape({1});
  if (name.empty()) return at::zeros({}, count.options());
  const Group group = find_group(name);
  const NetworkTimer timer(mask);
  return all_gather(count, group).narrow(0, 0, group->getRank()).sum();
}

at::Tensor count_meta(const at::Tensor& mask, const std::string& /*group*/) {
  return at::empty({}, mask.options().dtype(at::kLong));
}

at::Tensor call_count(const at::Tensor& mask, const std::string& group) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tensoropt::count_before", "")
                             .typed<decltype(count_before)>();
  return op.call(mask, group);
}

at::Tensor masked_scatter_shard(const at::Tensor& x, const at::Tensor& mask,
                                const at::Tensor& source,
                                const std::string& group) {
  const at::Tensor chosen = mask.expand_as(x);
  const at::Tensor before = call_count(chosen, group);
  // It says what is wrong if the source has too few elements.
  if (source.numel() == 0) return at::masked_scatter(x, mask, source);
  const at::Tensor flat = chosen.reshape({-1});
  const at::Tensor places = flat.cumsum(0, at::kLong) - 1 + before;
  const at::Tensor found = source.reshape({-1}).index_select(
      0, places.masked_fill(flat.logical_not(), 0));
  return at::where(chosen, found.view(x.sizes()), x);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "masked_scatter_shard(Tensor x, Tensor mask, Tensor source, "
      "str group) -> Tensor",
      masked_scatter_shard);
  library.def("count_before(Tensor mask, str group) -> Tensor");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("count_before", count_before);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("count_before", count_meta);
}

}  // namespace tensoropt::masked_scatter_op
