// What a mean loss divides by: the number of its targets, or their weight.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>

namespace tensoropt {

// The number of targets other than `ignore_index`, summed over the ranks of the
// group (an empty name: of this rank alone), as a scalar int64 tensor. Calls
// tensoropt::valid_count, which has a meta kernel.
at::Tensor valid_count(const at::Tensor& target, std::int64_t ignore_index,
                       const std::string& group);

// Likewise the sum of `weight` [classes] at these targets, in float32 or, for
// float64 weights, float64. Calls tensoropt::valid_weight.
at::Tensor valid_weight(const at::Tensor& target, const at::Tensor& weight,
                        std::int64_t ignore_index, const std::string& group);

}  // namespace tensoropt
