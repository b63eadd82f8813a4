#include "runtime/program.h"

#include <utility>

namespace tensoropt {

namespace {

void check_step(const ProgramStep& step, std::size_t num_groups) {
  const auto kind = static_cast<int>(step.kind);
  TORCH_CHECK_VALUE(kind >= 0 && kind < kNumStepKinds, "reshard step of kind ",
                    kind);
  const auto slots = static_cast<std::int64_t>(num_groups);
  TORCH_CHECK_VALUE(
      is_local(step.kind) || (step.group_slot >= 0 && step.group_slot < slots),
      "reshard step uses group ", step.group_slot, " of ", slots);
  TORCH_CHECK_VALUE(
      step.group_size >= 1 && step.index >= 0 && step.index < step.group_size,
      "reshard step has index ", step.index, " in a group of ",
      step.group_size);
}

void join(std::vector<std::int64_t>& shape, std::int64_t dim,
          std::int64_t count) {
  shape.at(dim) *= count;
}

void split(std::vector<std::int64_t>& shape, std::int64_t dim,
           std::int64_t count) {
  TORCH_CHECK_VALUE(shape.at(dim) % count == 0, "reshard splits dim ", dim,
                    " of local size ", shape[dim], " into ", count,
                    " equal parts");
  shape[dim] /= count;
}

// The parts of a dim, numbered by a new dim 0; contiguous.
at::Tensor parts_of(const at::Tensor& x, std::int64_t dim, std::int64_t count) {
  return x.unflatten(dim, {count, x.size(dim) / count})
      .movedim(dim, 0)
      .contiguous();
}

// The inverse of parts_of.
at::Tensor joined(const at::Tensor& parts, std::int64_t dim) {
  return parts.movedim(0, dim).flatten(dim, dim + 1);
}

at::Tensor compact(const at::Tensor& x) {
  return x.clone(at::MemoryFormat::Contiguous);
}

Started start(StepKind kind, const at::Tensor& operand, const Group& group) {
  switch (kind) {
    case StepKind::kAllGather:
      return start_all_gather(operand, group);
    case StepKind::kReduceScatter:
      return start_reduce_scatter(operand, group);
    case StepKind::kAllReduce:
      return start_all_reduce(operand, group);
    default:
      return start_all_to_all(operand, group);
  }
}

}  // namespace

Program::Program(at::IntArrayRef steps, std::vector<std::string> groups)
    : groups_(std::move(groups)) {
  TORCH_CHECK_VALUE(steps.size() % kIntsPerStep == 0, "a reshard program has ",
                    kIntsPerStep, " integers per step, got ", steps.size());
  for (std::size_t i = 0; i < steps.size(); i += kIntsPerStep) {
    steps_.push_back({static_cast<StepKind>(steps[i]), steps[i + 1],
                      steps[i + 2], steps[i + 3], steps[i + 4], steps[i + 5]});
    check_step(steps_.back(), groups_.size());
  }
}

std::vector<std::int64_t> Program::output_shape(at::IntArrayRef shape) const {
  std::vector<std::int64_t> result = shape.vec();
  const auto rank = static_cast<std::int64_t>(result.size());
  for (const ProgramStep& step : steps_) {
    TORCH_CHECK_VALUE(step.dim < rank && step.to_dim < rank, "reshard of dim ",
                      step.dim, " of a tensor with ", rank, " dims");
    switch (step.kind) {
      case StepKind::kAllToAll:
        split(result, step.to_dim, step.group_size);
        [[fallthrough]];
      case StepKind::kAllGather:
        join(result, step.dim, step.group_size);
        break;
      case StepKind::kReduceScatter:
      case StepKind::kSlice:
        split(result, step.dim, step.group_size);
        break;
      default:
        break;
    }
  }
  return result;
}

Execution::Execution(Program program, at::Tensor x)
    : program_(std::move(program)),
      device_(x.device()),
      is_complex_(x.is_complex()),
      x_(std::move(x)) {
  if (program_.empty()) return;
  // Refuses sizes that do not divide.
  const std::vector<std::int64_t> shape = program_.output_shape(x_.sizes());
  if (x_.numel() == 0) {  // on all ranks alike: there is nothing to send
    x_ = at::empty(shape, x_.options());
    owned_ = true;
    next_ = program_.steps().size();
    return;
  }
  // Collectives do not take complex numbers; dims keep their places.
  if (is_complex_) x_ = at::view_as_real(x_);
  const NetworkTimer timer(device_);
  count_program();
  begin_next();
}

// Up to a collective, or the end.
void Execution::begin_next() {
  while (has_steps() && !started_) begin(program_.steps()[next_++]);
}

void Execution::advance() {
  if (!has_steps()) return;
  const NetworkTimer timer(device_);
  end();
  begin_next();
}

at::Tensor Execution::finish() {
  if (program_.empty()) return std::move(x_);
  const NetworkTimer timer(device_);
  end();
  while (has_steps()) {
    begin_next();
    end();
  }
  return take();
}

void Execution::begin(const ProgramStep& step) {
  if (is_local(step.kind)) return run_local(step);
  const std::string& name = program_.group_of(step);
  const Group group = find_group(name);
  TORCH_CHECK_VALUE(group->getSize() == step.group_size, "group '", name,
                    "' has ", group->getSize(), " ranks, the reshard needs ",
                    step.group_size);
  const at::Tensor operand = operand_of(step);
  x_ = at::Tensor();
  owned_ = true;
  started_ = start(step.kind, operand, group);
}

at::Tensor Execution::operand_of(const ProgramStep& step) const {
  switch (step.kind) {
    case StepKind::kAllGather:
      return x_.contiguous();
    case StepKind::kReduceScatter:
      return parts_of(x_, step.dim, step.group_size);
    case StepKind::kAllReduce:  // in place
      return owned_ ? x_.contiguous() : compact(x_);
    default:
      return parts_of(x_, step.to_dim, step.group_size);
  }
}

void Execution::end() {
  if (!started_) return;
  x_ = started_->wait();
  started_.reset();
  const ProgramStep& step = program_.steps()[next_ - 1];
  const bool in_parts =
      step.kind == StepKind::kAllGather || step.kind == StepKind::kAllToAll;
  if (in_parts) x_ = joined(x_, step.dim);
}

void Execution::run_local(const ProgramStep& step) {
  if (step.kind == StepKind::kSlice) {
    count(StepKind::kSlice);
    const std::int64_t size = x_.size(step.dim) / step.group_size;
    x_ = x_.narrow(step.dim, size * step.index, size);
    return;
  }
  count(StepKind::kMask);
  if (step.index == 0) return;
  x_ = at::zeros_like(x_);
  owned_ = true;
}

// The result in memory of its own.
at::Tensor Execution::take() {
  const auto bytes = static_cast<std::size_t>(x_.numel()) * x_.itemsize();
  const bool whole = x_.is_contiguous() && x_.storage().nbytes() == bytes;
  at::Tensor result = whole && owned_ ? std::move(x_) : compact(x_);
  const bool as_real = is_complex_ && !result.is_complex();
  return as_real ? at::view_as_complex(result) : result;
}

at::Tensor run(Program program, const at::Tensor& x) {
  return Execution(std::move(program), x).finish();
}

}  // namespace tensoropt
