// tensoropt::valid_count(target, ignore_index, group) and
// tensoropt::valid_weight(target, weight, ignore_index, group), see
// valid_count.h.

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

at::ScalarType weight_type(const at::Tensor& weight) {
  return weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor weight_kernel(const at::Tensor& target, const at::Tensor& weight,
                         std::int64_t ignore_index, const std::string& group) {
  const at::Tensor ignored = target.eq(ignore_index);
  const at::Tensor weights = weight.to(weight_type(weight))
                                 .take(target.masked_fill(ignored, 0))
                                 .masked_fill_(ignored, 0);
  at::Tensor result = weights.sum();
  if (!group.empty()) all_reduce(result, find_group(group));
  return result;
}

at::Tensor weight_meta(const at::Tensor& /*target*/, const at::Tensor& weight,
                       std::int64_t /*ignore_index*/,
                       const std::string& /*group*/) {
  return at::empty({}, weight.options().dtype(weight_type(weight)));
}

}  // namespace

at::Tensor valid_weight(const at::Tensor& target, const at::Tensor& weight,
                        std::int64_t ignore_index, const std::string& group) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tensoropt::valid_weight", "")
                             .typed<decltype(weight_kernel)>();
  return op.call(target, weight, ignore_index, group);
}

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
  library.def(
      "valid_weight(Tensor target, Tensor weight, int ignore_index, "
      "str group) -> Tensor");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("valid_count", count_kernel);
  library.impl("valid_weight", weight_kernel);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("valid_count", count_meta);
  library.impl("valid_weight", weight_meta);
}

}  // namespace tensoropt
