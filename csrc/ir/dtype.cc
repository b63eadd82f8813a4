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

constexpr std::array<Info, 10> kInfos{{
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
}};

const Info& info(DType dtype) { return kInfos[static_cast<int>(dtype)]; }

}  // namespace

int item_size(DType dtype) { return info(dtype).size; }

bool is_floating_point(DType dtype) { return info(dtype).floating_point; }

DType parse_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kInfos.size(); ++i) {
    if (kInfos[i].name == name) return static_cast<DType>(i);
  }
  TO_CHECK(false,
           "dtype '{}' is not supported; convert the tensor to one of "
           "float64, float32, bfloat16, float16, int64, int32, int16, "
           "int8, uint8, bool",
           name);
}

std::string_view to_string(DType dtype) { return info(dtype).name; }

}  // namespace tensoropt
