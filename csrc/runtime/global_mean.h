// Means of losses whose positions are split over ranks, which may have
// different numbers of valid targets.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

namespace tensoropt {

// What a mean divides by on this rank, a scalar in float64: the number of
// targets other than `ignore_index`, or the sum of `weight` [classes] at them
// (added up in float32 or, for float64 weights, float64).
at::Tensor valid_divisor(const at::Tensor& target,
                         const std::optional<at::Tensor>& weight,
                         std::int64_t ignore_index);

// The sum of `sum` over the ranks of the group, divided by that of `divisor`,
// in the dtype of `sum`; and the divisor of all ranks, in float64. Both are
// scalars that go through one all-reduce; without a group (an empty name) they
// are those of this rank. The kernel of tensoropt::mean_over_ranks.
std::tuple<at::Tensor, at::Tensor> global_mean(const at::Tensor& sum,
                                               const at::Tensor& divisor,
                                               const std::string& group);

// The mean alone, with a gradient: a rank's share of that is the one of its own
// sum. Calls tensoropt::mean_over_ranks, which has a meta kernel.
at::Tensor mean_over_ranks(const at::Tensor& sum, const at::Tensor& divisor,
                           const std::string& group);

}  // namespace tensoropt
