// Writing what is sent together into the memory of a bucket, for compiled
// graphs.
//
// tensoropt::write_into_(bucket, parts, rows, offset)
//
// Writes `parts` side by side, each as so many rows, into the columns of
// `bucket` from `offset` on; the bucket has the same rows, one after the other.
// An operator of its own, so that compilers neither wait with it nor fuse it
// with those of other parts: the memory of the parts is free right after it.

#include <torch/library.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace tensoropt::write_into_op {

namespace {

// The bucket is a reference that is not const since the schema writes to it.
void write_into(at::Tensor& bucket, at::TensorList parts, std::int64_t rows,
                std::int64_t offset) {
  std::vector<at::Tensor> own;
  own.reserve(parts.size());
  std::int64_t columns = 0;
  for (const at::Tensor& part : parts) {
    own.push_back(part.reshape({rows, -1}));
    columns += own.back().size(1);
  }
  at::Tensor place = bucket.view({rows, -1}).narrow(1, offset, columns);
  at::cat_out(place, own, 1);
}

// Whether the bytes in the memory of a tensor are what a bucket gets.
bool is_plain(const at::Tensor& x, at::ScalarType dtype) {
  return x.scalar_type() == dtype && x.is_contiguous() && !x.is_conj() &&
         !x.is_neg();
}

// The same for one row of the host, where that is all there is to do: operators
// take longer to call than small parts to copy. Says whether it was.
bool copy_bytes(at::Tensor& bucket, at::TensorList parts, std::int64_t offset) {
  const at::ScalarType dtype = bucket.scalar_type();
  std::size_t num_bytes = 0;
  for (const at::Tensor& part : parts) {
    if (!is_plain(part, dtype)) return false;
    num_bytes += part.nbytes();
  }
  const auto begin = static_cast<std::size_t>(offset) * bucket.itemsize();
  if (offset < 0 || !is_plain(bucket, dtype) ||
      begin + num_bytes > bucket.nbytes()) {
    return false;
  }
  auto* place = static_cast<std::byte*>(bucket.mutable_data_ptr()) + begin;
  for (const at::Tensor& part : parts) {
    if (part.nbytes() == 0) continue;
    std::memcpy(place, part.const_data_ptr(), part.nbytes());
    place += part.nbytes();
  }
  return true;
}

void write_into_host(at::Tensor& bucket, at::TensorList parts,
                     std::int64_t rows, std::int64_t offset) {
  if (rows != 1 || !copy_bytes(bucket, parts, offset)) {
    write_into(bucket, parts, rows, offset);
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "write_into_(Tensor(a!) bucket, Tensor[] parts, int rows, int offset) -> "
      "()");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("write_into_", write_into);
}
// A kernel of its own, which tensors without memory do not come to.
TORCH_LIBRARY_IMPL(tensoropt, CPU, library) {
  library.impl("write_into_", write_into_host);
}

}  // namespace tensoropt::write_into_op
