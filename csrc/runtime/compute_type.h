// In which type statistics and losses of a tensor are computed.
#pragma once

#include <ATen/ATen.h>

namespace tensoropt {

// float64 as it is, all others in float32.
inline at::ScalarType compute_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace tensoropt
