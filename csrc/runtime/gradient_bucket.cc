#include "runtime/gradient_bucket.h"

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
  at::Tensor flat = at::empty({rows, size}, options);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    std::vector<std::int64_t> shape = parts[i].sent;
    shape.insert(shape.begin(), rows);
    flat.narrow(1, parts[i].offset, num_elements(parts[i].sent))
        .view(shape)
        .copy_(by_row(member.program.steps()[0], member.gradient));
    member.gradient = at::Tensor();
    // What is between the parts is reduced as well, and read by nobody.
    const std::int64_t end = parts[i].offset + num_elements(parts[i].sent);
    const std::int64_t next = i + 1 < parts.size() ? parts[i + 1].offset : size;
    if (end < next) flat.narrow(1, end, next - end).zero_();
  }
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
        flat.narrow(0, part.offset, num_elements(part.sent)).view(part.sent);
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
