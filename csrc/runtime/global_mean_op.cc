// tensoropt::mean_over_ranks(sum, divisor, group) -> (mean, divisor of all),
// and tensoropt::valid_divisor(target, weight, ignore_index) -> number: see
// global_mean.h.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "runtime/collectives.h"
#include "runtime/global_mean.h"
#include "runtime/second_derivatives.h"

namespace tensoropt {

namespace {

using torch::autograd::AutogradContext;
using MeanAndDivisor = std::tuple<at::Tensor, at::Tensor>;

MeanAndDivisor mean_meta(const at::Tensor& sum, const at::Tensor& /*divisor*/,
                         const std::string& /*group*/) {
  return {at::empty({}, sum.options()),
          at::empty({}, sum.options().dtype(at::kDouble))};
}

MeanAndDivisor call_mean(const at::Tensor& sum, const at::Tensor& divisor,
                         const std::string& group) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("tensoropt::mean_over_ranks", "")
          .typed<decltype(global_mean)>();
  return op.call(sum, divisor, group);
}

struct MeanOverRanks : torch::autograd::Function<MeanOverRanks> {
  static torch::autograd::variable_list forward(AutogradContext* context,
                                                const at::Tensor& sum,
                                                const at::Tensor& divisor,
                                                const std::string& group) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [mean, total] = call_mean(sum, divisor, group);
    context->save_for_backward({total});
    context->mark_non_differentiable({total});
    context->saved_data["group"] = group;
    return {mean, total};
  }

  static torch::autograd::variable_list backward(
      AutogradContext* context, torch::autograd::variable_list gradients) {
    const at::Tensor total = context->get_saved_variables()[0];
    if (is_differentiated_again()) {
      gradients[0] = shared_again(gradients[0],
                                  context->saved_data["group"].toStringRef());
    }
    return {(gradients[0] / total).to(gradients[0].scalar_type()), {}, {}};
  }
};

MeanAndDivisor mean_autograd(const at::Tensor& sum, const at::Tensor& divisor,
                             const std::string& group) {
  const auto results = MeanOverRanks::apply(sum, divisor, group);
  return {results[0], results[1]};
}

at::ScalarType weight_type(const at::Tensor& weight) {
  return weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

at::Tensor valid_divisor(const at::Tensor& target,
                         const std::optional<at::Tensor>& weight,
                         std::int64_t ignore_index) {
  if (!weight) return target.ne(ignore_index).sum().to(at::kDouble);
  const at::Tensor ignored = target.eq(ignore_index);
  return weight->to(weight_type(*weight))
      .take(target.masked_fill(ignored, 0))
      .masked_fill(ignored, 0)
      .sum()
      .to(at::kDouble);
}

MeanAndDivisor global_mean(const at::Tensor& sum, const at::Tensor& divisor,
                           const std::string& group) {
  at::Tensor both = at::stack({sum.to(at::kDouble), divisor.to(at::kDouble)});
  if (!group.empty()) all_reduce(both, find_group(group));
  return {(both[0] / both[1]).to(sum.scalar_type()), both[1].clone()};
}

at::Tensor mean_over_ranks(const at::Tensor& sum, const at::Tensor& divisor,
                           const std::string& group) {
  return std::get<0>(call_mean(sum, divisor, group));
}

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "mean_over_ranks(Tensor sum, Tensor divisor, str group) -> "
      "(Tensor, Tensor)");
  library.def(
      "valid_divisor(Tensor target, Tensor? weight, int ignore_index) -> "
      "Tensor",
      valid_divisor);
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("mean_over_ranks", global_mean);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("mean_over_ranks", mean_meta);
}
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("mean_over_ranks", mean_autograd);
}

}  // namespace tensoropt
