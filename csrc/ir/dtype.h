// Element types of tensors, as far as costs depend on them.
#pragma once

#include <string_view>

namespace tensoropt {

enum class DType {
  kFloat64,
  kFloat32,
  kBFloat16,
  kFloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kBool,
  kComplex64,
  kComplex128,
};

// Bytes per element.
int item_size(DType dtype);

// True for complex numbers too: they have gradients and pending sums.
bool is_floating_point(DType dtype);

// The dtype of the real and the imaginary part; of other dtypes their own.
DType real_dtype(DType dtype);

// "float32" <-> DType::kFloat32. Throws UserError for an unknown name.
DType parse_dtype(std::string_view name);
std::string_view to_string(DType dtype);

}  // namespace tensoropt
