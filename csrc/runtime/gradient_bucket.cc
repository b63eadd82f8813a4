#include "runtime/gradient_bucket.h"

#include <c10/util/strides.h>

#include <algorithm>

#include "runtime/flat_parts.h"

namespace tensoropt {

namespace {

std::int64_t num_elements(at::IntArrayRef shape) {
  return c10::multiply_integers(shape);
}

// What is sent of a gradient, in a row for each rank that gets a part.
at::Tensor by_row(const ProgramStep& step, const at::Tensor& gradient) {
  if (step.kind == StepKind::kAllReduce) return gradient.unsqueeze(0);
  if (!step.parts.empty()) {
    return parts_of(gradient, step.dim, step.group_size, step.parts);
  }
  const std::int64_t part = gradient.size(step.dim) / step.group_size;
  return gradient.unflatten(step.dim, {step.group_size, part})
      .movedim(step.dim, 0);
}

}  // namespace

std::optional<GradientBucket::Key> GradientBucket::key_of(
    const Program& program, const at::Tensor& gradient) {
  if (program.steps().size() != 1 || gradient.is_complex()) return {};
  const ProgramStep& step = program.steps()[0];
  if (step.num_elements(gradient) == 0) return {};
  if (step.kind != StepKind::kAllReduce &&
      step.kind != StepKind::kReduceScatter) {
    return {};
  }
  return Key{step.kind, program.group_of(step), gradient.scalar_type()};
}

void GradientBucket::add(Slot slot, Program program, at::Tensor gradient) {
  std::vector<std::int64_t> shape = program.output_shape(gradient.sizes());
  num_bytes_ += program.steps()[0].num_elements(gradient) *
                static_cast<std::int64_t>(gradient.itemsize());
  members_.push_back(
      {slot, std::move(program), std::move(gradient), std::move(shape)});
}

// Whether what is sent of each gradient is that, seen in rows.
bool GradientBucket::have_rows() const {
  return std::all_of(
      members_.begin(), members_.end(), [](const Member& member) {
        const ProgramStep& step = member.program.steps()[0];
        const bool in_order = step.kind == StepKind::kAllReduce ||
                              (step.parts.empty() && step.dim == 0);
        return in_order && member.gradient.is_contiguous();
      });
}

// By one call, for gradients that have rows. What is between the parts is
// reduced as well, and read by nobody.
at::Tensor GradientBucket::joined(const std::vector<Reduction::Part>& parts,
                                  std::int64_t rows, std::int64_t size) const {
  std::vector<at::Tensor> pieces;
  std::vector<at::Tensor> gaps(kFlatAlignment);  // by their length
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const at::Tensor& gradient = members_[i].gradient;
    pieces.push_back(gradient.view({rows, gradient.numel() / rows}));
    const std::int64_t end = parts[i].offset + gradient.numel() / rows;
    const std::int64_t next = i + 1 < parts.size() ? parts[i + 1].offset : size;
    if (end == next) continue;
    at::Tensor& gap = gaps[next - end];
    if (!gap.defined()) gap = at::zeros({rows, next - end}, gradient.options());
    pieces.push_back(gap);
  }
  return at::cat(pieces, 1);
}

// One by one, each let go.
at::Tensor GradientBucket::copied(const std::vector<Reduction::Part>& parts,
                                  std::int64_t rows, std::int64_t size) {
  at::Tensor flat = at::empty({rows, size}, members_[0].gradient.options());
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    std::vector<std::int64_t> shape = parts[i].sent;
    shape.insert(shape.begin(), rows);
    flat.narrow(1, parts[i].offset, num_elements(parts[i].sent))
        .view(shape)
        .copy_(by_row(member.program.steps()[0], member.gradient));
    member.gradient = at::Tensor();
    const std::int64_t end = parts[i].offset + num_elements(parts[i].sent);
    const std::int64_t next = i + 1 < parts.size() ? parts[i + 1].offset : size;
    if (end < next) flat.narrow(1, end, next - end).zero_();
  }
  return flat;
}

GradientBucket::Reduction GradientBucket::start() {
  const ProgramStep step = members_[0].program.steps()[0];
  const std::string name = members_[0].program.group_of(step);
  const at::TensorOptions options = members_[0].gradient.options();
  FlatParts places(static_cast<std::int64_t>(options.dtype().itemsize()));
  std::vector<Reduction::Part> parts;
  for (const Member& member : members_) {
    const ProgramStep& own = member.program.steps()[0];
    std::vector<std::int64_t> sent = member.shape;
    if (!own.parts.empty()) {
      sent[own.dim] = *std::max_element(own.parts.begin(), own.parts.end());
    }
    const std::int64_t offset = places.add(num_elements(sent));
    parts.push_back({member.slot, std::move(sent), member.shape, offset});
  }
  const std::int64_t size = places.size();
  const bool scatters = step.kind == StepKind::kReduceScatter;
  const std::int64_t rows = scatters ? step.group_size : 1;
  const NetworkTimer timer(members_[0].gradient);
  const at::Tensor flat =
      have_rows() ? joined(parts, rows, size) : copied(parts, rows, size);
  members_.clear();
  num_bytes_ = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) count_program();
  const Group group = find_group(name);
  TORCH_CHECK_VALUE(group->getSize() == step.group_size, "group '", name,
                    "' has ", group->getSize(), " ranks, the reshard needs ",
                    step.group_size);
  return {scatters ? start_reduce_scatter(flat, group)
                   : start_all_reduce(flat, group),
          std::move(parts)};
}

GradientBucket::Reduced GradientBucket::Reduction::finish() {
  const at::Tensor flat = started_.wait().flatten();
  Reduced result;
  for (const Part& part : parts_) {
    at::Tensor reduced =
        flat.as_strided(part.sent, c10::contiguous_strides(part.sent),
                        flat.storage_offset() + part.offset);
    for (std::size_t dim = 0; dim < part.shape.size(); ++dim) {
      if (part.shape[dim] == part.sent[dim]) continue;
      reduced =
          reduced.narrow(static_cast<std::int64_t>(dim), 0, part.shape[dim]);
    }
    result.emplace_back(part.slot, reduced.contiguous());
  }
  return result;
}

}  // namespace tensoropt
