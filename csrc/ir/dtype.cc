#include "ir/dtype.h"

#include <array>

#include "common/check.h"

namespace tensoropt {

namespace {

struct Info {
  std::string_view name;
  int size;
  bool floating_point;
};

constexpr std::array<Info, 12> kInfos{{
    {"float64", 8, true},
    {"float32", 4, true},
    {"bfloat16", 2, true},
    {"float16", 2, true},
    {"int64", 8, false},
    {"int32", 4, false},
    {"int16", 2, false},
    {"int8", 1, false},
    {"uint8", 1, false},
    {"bool", 1, false},
    {"complex64", 8, true},
    {"complex128", 16, true},
}};

const Info& info(DType dtype) { return kInfos[static_cast<int>(dtype)]; }

}  // namespace

int item_size(DType dtype) { return info(dtype).size; }

bool is_floating_point(DType dtype) { return info(dtype).floating_point; }

DType real_dtype(DType dtype) {
  if (dtype == DType::kComplex64) return DType::kFloat32;
  return dtype == DType::kComplex128 ? DType::kFloat64 : dtype;
}

DType parse_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kInfos.size(); ++i) {
    if (kInfos[i].name == name) return static_cast<DType>(i);
  }
  TO_CHECK(false,
           "dtype '{}' is not supported; convert the tensor to one of "
           "float64, float32, bfloat16, float16, int64, int32, int16, "
           "int8, uint8, bool, complex64, complex128",
           name);
}

std::string_view to_string(DType dtype) { return info(dtype).name; }

}  // namespace tensoropt
