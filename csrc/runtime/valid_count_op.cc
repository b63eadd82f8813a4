// tensoropt::valid_count(target, ignore_index, group), see valid_count.h.

#include <torch/library.h>

#include "runtime/collectives.h"
#include "runtime/valid_count.h"

namespace tensoropt {

namespace {

at::Tensor count_kernel(const at::Tensor& target, std::int64_t ignore_index,
                        const std::string& group) {
  at::Tensor result = target.ne(ignore_index).sum();
  if (!group.empty()) all_reduce(result, find_group(group));
  return result;
}

at::Tensor count_meta(const at::Tensor& target, std::int64_t /*ignore_index*/,
                      const std::string& /*group*/) {
  return at::empty({}, target.options().dtype(at::kLong));
}

}  // namespace

at::Tensor valid_count(const at::Tensor& target, std::int64_t ignore_index,
                       const std::string& group) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tensoropt::valid_count", "")
                             .typed<decltype(count_kernel)>();
  return op.call(target, ignore_index, group);
}

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "valid_count(Tensor target, int ignore_index, str group) -> Tensor");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("valid_count", count_kernel);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("valid_count", count_meta);
}

}  // namespace tensoropt
