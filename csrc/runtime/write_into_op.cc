// Writing what is sent together into the memory of a bucket, for compiled
// graphs.
//
// tensoropt::write_into_(bucket, part, rows, offset)
//
// Writes `part`, as so many rows, into the columns of `bucket` from `offset`
// on; the bucket has the same rows, one after the other. An operator of its
// own, so that compilers neither wait with it nor fuse it with those of other
// parts: the memory of a part is free right after it.

#include <torch/library.h>

namespace tensoropt::write_into_op {

namespace {

// The bucket is a reference that is not const since the schema writes to it.
void write_into(at::Tensor& bucket, const at::Tensor& part, std::int64_t rows,
                std::int64_t offset) {
  const at::Tensor own = part.reshape({rows, -1});
  bucket.view({rows, -1}).narrow(1, offset, own.size(1)).copy_(own);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "write_into_(Tensor(a!) bucket, Tensor part, int rows, int offset) -> "
      "()");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("write_into_", write_into);
}

}  // namespace tensoropt::write_into_op
