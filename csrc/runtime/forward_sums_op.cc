// What the ranks of a group add up once, where forward ends.
//
// tensoropt::forward_sums(shares, buffers, begins, sizes, holders, group)
//     -> sums
//
// The sums of scalars over the ranks, added up in float64. With them go buffers
// [c] that each rank has changed by itself, and only so many entries (`sizes`)
// from `begins` on: they become the means of the ranks that have changed the
// same entries, of which there are `holders`. What ranks have moved towards
// statistics of their own has then been moved towards the mean of these. One
// collective.
//
// tensoropt::sum_of(sum, share, group) -> sum
//
// With the gradient of the rank's share, which is that of the sum over the
// ranks of the group.

#include <c10/util/irange.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>
#include <vector>

#include "runtime/autograd_calls.h"
#include "runtime/collectives.h"
#include "runtime/compute_type.h"
#include "runtime/second_derivatives.h"

namespace tensoropt::forward_sums_op {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Sizes = at::IntArrayRef;

// What this rank has changed of each buffer, zeros elsewhere.
std::vector<at::Tensor> changed_parts(at::TensorList buffers, Sizes begins,
                                      Sizes sizes) {
  std::vector<at::Tensor> parts;
  for (const auto i : c10::irange(buffers.size())) {
    const at::Tensor& buffer = buffers[i];
    if (sizes[i] == buffer.numel()) {
      parts.push_back(buffer);
      continue;
    }
    parts.push_back(at::zeros_like(buffer));
    parts.back()
        .narrow(0, begins[i], sizes[i])
        .copy_(buffer.narrow(0, begins[i], sizes[i]));
  }
  return parts;
}

// Each of `parts`, which lie one after the other at the beginning of `flat`,
// divided by the number of ranks that have it.
void divide(const at::Tensor& flat, at::TensorList parts, Sizes holders) {
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < parts.size();) {
    const std::int64_t count = holders[i];
    std::int64_t end = begin;
    for (; i < parts.size() && holders[i] == count; ++i) {
      end += parts[i].numel();
    }
    flat.slice(0, begin, end).div_(count);
    begin = end;
  }
}

// Parts of `flat`, one after the other.
void copy_parts(at::TensorList to, const at::Tensor& flat) {
  std::vector<std::int64_t> lengths;
  for (const at::Tensor& tensor : to) lengths.push_back(tensor.numel());
  std::vector<at::Tensor> parts = flat.split_with_sizes(lengths);
  for (const auto i : c10::irange(to.size())) {
    parts[i] = parts[i].view_as(to[i]);
  }
  at::_foreach_copy_(to, parts);
}

std::vector<at::Tensor> forward_sums(at::TensorList shares,
                                     at::TensorList buffers, Sizes begins,
                                     Sizes sizes, Sizes holders,
                                     const std::string& group) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  std::vector<at::Tensor> sent = changed_parts(buffers, begins, sizes);
  std::vector<at::Tensor> results = buffers.vec();
  std::vector<at::Tensor> sums;
  for (const at::Tensor& share : shares) {
    TORCH_CHECK_VALUE(share.dim() == 0, "a scalar is summed, got ",
                      share.sizes());
    sent.push_back(share.to(at::kDouble).view(1));
    sums.push_back(at::empty_like(share));
  }
  results.insert(results.end(), sums.begin(), sums.end());
  at::Tensor flat = at::cat(sent);
  flat = flat.to(compute_type(flat));
  divide(flat, buffers, holders);
  all_reduce(flat, find_group(group));
  copy_parts(results, flat);
  return sums;
}

std::vector<at::Tensor> forward_sums_meta(at::TensorList shares,
                                          at::TensorList /*buffers*/,
                                          Sizes /*begins*/, Sizes /*sizes*/,
                                          Sizes /*holders*/,
                                          const std::string& /*group*/) {
  std::vector<at::Tensor> sums;
  for (const at::Tensor& share : shares) sums.push_back(at::empty_like(share));
  return sums;
}

std::vector<at::Tensor> forward_sums_autograd(at::TensorList shares,
                                              at::TensorList buffers,
                                              Sizes begins, Sizes sizes,
                                              Sizes holders,
                                              const std::string& group) {
  return call_below_autograd<forward_sums>("tensoropt::forward_sums", shares,
                                           buffers, begins, sizes, holders,
                                           group);
}

at::Tensor sum_of(const at::Tensor& sum, const at::Tensor& /*share*/,
                  const std::string& /*group*/) {
  return sum.clone();
}

// One for each sum: where no gradient comes, none goes on.
struct SumOf : torch::autograd::Function<SumOf> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& sum,
                            const at::Tensor& /*share*/,
                            const std::string& group) {
    context->saved_data["group"] = group;
    const at::AutoDispatchBelowADInplaceOrView guard;
    return sum.clone();
  }

  static variable_list backward(AutogradContext* context,
                                variable_list gradients) {
    if (is_differentiated_again()) {
      gradients[0] = shared_again(gradients[0],
                                  context->saved_data["group"].toStringRef());
    }
    return {at::Tensor(), gradients[0], at::Tensor()};
  }
};

at::Tensor sum_of_autograd(const at::Tensor& sum, const at::Tensor& share,
                           const std::string& group) {
  return SumOf::apply(sum, share, group);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "forward_sums(Tensor[] shares, Tensor(a!)[] buffers, int[] begins, "
      "int[] sizes, int[] holders, str group) -> Tensor[]");
  library.def("sum_of(Tensor sum, Tensor share, str group) -> Tensor");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("forward_sums", forward_sums);
  library.impl("sum_of", sum_of);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("forward_sums", forward_sums_meta);
}
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("forward_sums", forward_sums_autograd);
  library.impl("sum_of", sum_of_autograd);
}

}  // namespace tensoropt::forward_sums_op
