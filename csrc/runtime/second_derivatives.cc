#include "runtime/second_derivatives.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "common/step_code.h"
#include "runtime/collectives.h"

namespace tensoropt {

using torch::autograd::variable_list;

namespace {

using Strings = std::vector<std::string>;
using DType = std::optional<at::ScalarType>;

// A program of one step.
std::vector<std::int64_t> all_reduce_over(const std::string& name) {
  const Group group = find_group(name);
  return {static_cast<std::int64_t>(StepKind::kAllReduce),
          -1,
          -1,
          /*group_slot=*/0,
          group->getSize(),
          group->getRank()};
}

}  // namespace

at::Tensor reshard_again(const at::Tensor& x, at::IntArrayRef forward,
                         const Strings& forward_groups,
                         at::IntArrayRef backward,
                         const Strings& backward_groups, DType dtype,
                         DType reduce_dtype) {
  using Reshard = at::Tensor(const at::Tensor&, at::IntArrayRef, const Strings&,
                             at::IntArrayRef, const Strings&, DType, DType);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tensoropt::reshard", "")
                             .typed<Reshard>();
  return op.call(x, forward, forward_groups, backward, backward_groups, dtype,
                 reduce_dtype);
}

at::Tensor summed_again(const at::Tensor& x, const std::string& group,
                        GradientOn gradient) {
  if (group.empty()) return x;
  const auto sum = all_reduce_over(group);
  if (gradient == GradientOn::kAll) {
    return reshard_again(x, sum, {group}, {}, {});
  }
  return reshard_again(x, sum, {group}, sum, {group});
}

at::Tensor shared_again(const at::Tensor& x, const std::string& group) {
  if (group.empty()) return x;
  return reshard_again(x, {}, {}, all_reduce_over(group), {group});
}

variable_list gradients_again(
    const variable_list& operands, const at::Tensor& gradient,
    const std::function<at::Tensor(const variable_list&)>& compute) {
  variable_list views;
  variable_list wanted;
  for (const at::Tensor& operand : operands) {
    // Hooks of the operand itself are not called for what is computed here.
    views.push_back(operand.defined() ? operand.view_as(operand) : operand);
    if (operand.defined() && operand.requires_grad()) {
      wanted.push_back(views.back());
    }
  }
  variable_list found = torch::autograd::grad(
      {compute(views)}, wanted, {gradient}, /*retain_graph=*/true,
      /*create_graph=*/true, /*allow_unused=*/true);
  variable_list results;
  std::size_t next = 0;
  for (const at::Tensor& operand : operands) {
    const bool has = operand.defined() && operand.requires_grad();
    results.push_back(has ? std::move(found[next++]) : at::Tensor());
  }
  return results;
}

}  // namespace tensoropt
