// Offsets of several tensors that lie in one.
//
//   FlatParts flat(/*item_size=*/4);
//   const std::int64_t offset = flat.add(num_elements);
//   at::Tensor all = at::empty({flat.size()}, options);
//
// Offsets are multiples of 64 bytes.
#pragma once

#include <cstdint>

namespace tensoropt {

inline constexpr std::int64_t kFlatAlignment = 64;  // bytes

class FlatParts {
 public:
  explicit FlatParts(std::int64_t item_size)
      : align_(kFlatAlignment / item_size) {}

  // In elements.
  std::int64_t add(std::int64_t num_elements) {
    const std::int64_t offset = size_;
    size_ += (num_elements + align_ - 1) / align_ * align_;
    return offset;
  }
  std::int64_t size() const { return size_; }

 private:
  std::int64_t align_;
  std::int64_t size_ = 0;
};

}  // namespace tensoropt
