#include "runtime/gather_bucket.h"

#include <utility>

#include "runtime/flat_parts.h"

namespace tensoropt {

namespace {

void check(const std::vector<at::Tensor>& parts, at::IntArrayRef dims) {
  TORCH_CHECK_VALUE(!parts.empty(), "nothing is gathered together");
  TORCH_CHECK_VALUE(parts.size() == dims.size(), parts.size(),
                    " tensors are gathered along ", dims.size(), " dims");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor& part = parts[i];
    TORCH_CHECK_VALUE(part.scalar_type() == parts[0].scalar_type(),
                      "tensors of ", parts[0].scalar_type(), " and ",
                      part.scalar_type(), " are gathered together");
    TORCH_CHECK_VALUE(part.numel() > 0 && !part.is_complex(),
                      "a tensor that is gathered with others has no elements, "
                      "or complex ones");
    TORCH_CHECK_VALUE(dims[i] >= 0 && dims[i] < part.dim(), "gathers dim ",
                      dims[i], " of a tensor with ", part.dim(), " dims");
  }
}

}  // namespace

Started GatherBucket::start(const std::vector<at::Tensor>& parts,
                            const std::vector<Part>& places,
                            const std::string& group) {
  const NetworkTimer timer(parts[0]);
  const std::int64_t end = places.back().offset + parts.back().numel();
  at::Tensor flat = at::empty({end}, parts[0].options());
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int64_t offset = places[i].offset;
    // What is between the parts is sent as well, and read by nobody.
    if (filled < offset) flat.narrow(0, filled, offset - filled).zero_();
    filled = offset + parts[i].numel();
    flat.narrow(0, offset, parts[i].numel())
        .view(parts[i].sizes())
        .copy_(parts[i]);
    count_program();
  }
  return start_all_gather(flat, find_group(group));
}

GatherBucket::GatherBucket(const std::vector<at::Tensor>& parts,
                           at::IntArrayRef dims, const std::string& group)
    : parts_([&] {
        check(parts, dims);
        FlatParts flat(static_cast<std::int64_t>(parts[0].itemsize()));
        std::vector<Part> places;
        for (std::size_t i = 0; i < parts.size(); ++i) {
          places.push_back(
              {parts[i].sizes().vec(), dims[i], flat.add(parts[i].numel())});
        }
        return places;
      }()),
      started_(start(parts, parts_, group)) {}

std::vector<at::Tensor> GatherBucket::finish() {
  const at::Tensor flat = started_.wait();  // [ranks, elements]
  const NetworkTimer timer(flat);
  std::vector<at::Tensor> wholes;
  for (const Part& part : parts_) {
    std::vector<std::int64_t> shape = part.shape;
    shape.insert(shape.begin(), flat.size(0));
    const at::Tensor by_rank =
        flat.narrow(1, part.offset, c10::multiply_integers(part.shape))
            .view(shape);
    shape = part.shape;
    shape[part.dim] *= flat.size(0);
    at::Tensor whole = at::empty(shape, flat.options());
    whole.unflatten(part.dim, {flat.size(0), part.shape[part.dim]})
        .copy_(by_rank.movedim(0, part.dim));
    wholes.push_back(std::move(whole));
  }
  return wholes;
}

}  // namespace tensoropt
