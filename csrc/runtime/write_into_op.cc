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

#include <cstdint>
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

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "write_into_(Tensor(a!) bucket, Tensor[] parts, int rows, int offset) -> "
      "()");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("write_into_", write_into);
}

}  // namespace tensoropt::write_into_op
