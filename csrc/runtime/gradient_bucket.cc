#include "runtime/gradient_bucket.h"

#include "runtime/flat_parts.h"

namespace tensoropt {

namespace {

std::int64_t num_elements(at::IntArrayRef shape) {
  return c10::multiply_integers(shape);
}

}  // namespace

std::optional<GradientBucket::Key> GradientBucket::key_of(
    const Program& program, const at::Tensor& gradient) {
  if (program.steps().size() != 1 || gradient.is_complex() ||
      gradient.numel() == 0) {
    return {};
  }
  const ProgramStep& step = program.steps()[0];
  if (step.kind != StepKind::kAllReduce &&
      step.kind != StepKind::kReduceScatter) {
    return {};
  }
  return Key{step.kind, program.group_of(step), gradient.scalar_type()};
}

void GradientBucket::add(Slot slot, Program program, at::Tensor gradient) {
  std::vector<std::int64_t> shape = program.output_shape(gradient.sizes());
  num_bytes_ += static_cast<std::int64_t>(gradient.nbytes());
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
    parts.push_back(
        {member.slot, member.shape, places.add(num_elements(member.shape))});
  }
  const std::int64_t size = places.size();
  const bool scatters = step.kind == StepKind::kReduceScatter;
  const std::int64_t rows = scatters ? step.group_size : 1;
  const NetworkTimer timer(members_[0].gradient);
  at::Tensor flat = at::empty({rows, size}, options);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    std::vector<std::int64_t> shape = parts[i].shape;
    shape.insert(shape.begin(), rows);
    const std::int64_t dim = member.program.steps()[0].dim;
    const at::Tensor& own = member.gradient;
    const at::Tensor by_row =
        scatters
            ? own.unflatten(dim, {rows, own.size(dim) / rows}).movedim(dim, 0)
            : own.unsqueeze(0);
    flat.narrow(1, parts[i].offset, num_elements(parts[i].shape))
        .view(shape)
        .copy_(by_row);
    member.gradient = at::Tensor();
    // What is between the parts is reduced as well, and read by nobody.
    const std::int64_t end = parts[i].offset + num_elements(parts[i].shape);
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
    result.emplace_back(
        part.slot,
        flat.narrow(0, part.offset, num_elements(part.shape)).view(part.shape));
  }
  return result;
}

}  // namespace tensoropt
