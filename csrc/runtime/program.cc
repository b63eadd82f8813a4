#include "runtime/program.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
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

std::int64_t sum(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

std::int64_t longest(at::IntArrayRef sizes) {
  return *std::max_element(sizes.begin(), sizes.end());
}

void expect_size(at::IntArrayRef shape, std::int64_t dim, std::int64_t size) {
  TORCH_CHECK_VALUE(shape[dim] == size, "reshard of dim ", dim,
                    " of local size ", shape[dim], ", which has to be ", size);
}

void join(std::vector<std::int64_t>& shape, std::int64_t dim,
          const ProgramStep& step) {
  if (!step.is_uneven) {
    shape.at(dim) *= step.group_size;
    return;
  }
  expect_size(shape, dim, step.parts[step.index]);
  shape[dim] = sum(step.parts);
}

// `parts` if they differ.
void split(std::vector<std::int64_t>& shape, std::int64_t dim,
           const ProgramStep& step, at::IntArrayRef parts) {
  if (step.is_uneven) {
    expect_size(shape, dim, sum(parts));
    shape[dim] = parts[step.index];
    return;
  }
  TORCH_CHECK_VALUE(shape.at(dim) % step.group_size == 0, "reshard splits dim ",
                    dim, " of local size ", shape[dim], " into ",
                    step.group_size, " equal parts");
  shape[dim] /= step.group_size;
}

// With zeros at the end of a dim.
at::Tensor padded(const at::Tensor& x, std::int64_t dim, std::int64_t size) {
  if (x.size(dim) == size) return x;
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape[dim] = size;
  at::Tensor result = at::zeros(shape, x.options());
  result.narrow(dim, 0, x.size(dim)).copy_(x);
  return result;
}

// The inverse of parts_of.
at::Tensor joined(const at::Tensor& parts, std::int64_t dim,
                  at::IntArrayRef sizes) {
  if (sizes.empty()) return parts.movedim(0, dim).flatten(dim, dim + 1);
  std::vector<at::Tensor> pieces;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    pieces.push_back(parts.select(0, index).narrow(dim, 0, sizes[i]));
  }
  return at::cat(pieces, dim);
}

at::Tensor compact(const at::Tensor& x) {
  return x.clone(at::MemoryFormat::Contiguous);
}

struct NumberedPrograms {
  std::mutex mutex;
  std::map<std::pair<std::vector<std::int64_t>, std::vector<std::string>>,
           std::int64_t>
      numbers;
  std::deque<Program> programs;  // which stay where they are
};

NumberedPrograms& numbered_programs() {
  // Never destroyed: threads of backward may outlive what is at the end.
  static auto* all = new NumberedPrograms;
  return *all;
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

// Takes the next integers.
at::IntArrayRef take_ints(at::IntArrayRef& rest, std::int64_t count) {
  TORCH_CHECK_VALUE(0 <= count && count <= std::ssize(rest),
                    "a reshard program has ", kIntsPerStep,
                    " integers per step, and those that an uneven one counts, "
                    "got ",
                    rest.size(), " where ", count, " are due");
  const at::IntArrayRef taken = rest.slice(0, count);
  rest = rest.slice(count);
  return taken;
}

void add_uneven_values(ProgramStep& step, at::IntArrayRef values) {
  const bool is_whole =
      step.kind == StepKind::kAllReduce || step.kind == StepKind::kMask;
  TORCH_CHECK_VALUE(
      (step.dim < 0) == is_whole &&
          (step.to_dim >= 0) == (step.kind == StepKind::kAllToAll),
      "an uneven reshard step has dims ", step.dim, " and ", step.to_dim);
  step.is_uneven = true;
  step.most_elements = take_ints(values, 1)[0];
  if (step.dim >= 0) step.parts = take_ints(values, step.group_size).vec();
  if (step.to_dim >= 0) {
    step.to_parts = take_ints(values, step.group_size).vec();
  }
  TORCH_CHECK_VALUE(values.empty(), "an uneven reshard step has ",
                    values.size(), " integers too many");
}

}  // namespace

at::Tensor parts_of(const at::Tensor& x, std::int64_t dim, std::int64_t count,
                    at::IntArrayRef sizes) {
  if (sizes.empty()) {
    return x.unflatten(dim, {count, x.size(dim) / count})
        .movedim(dim, 0)
        .contiguous();
  }
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape[dim] = longest(sizes);
  shape.insert(shape.begin(), count);
  at::Tensor result = at::zeros(shape, x.options());
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    result.select(0, i)
        .narrow(dim, 0, sizes[i])
        .copy_(x.narrow(dim, begin, sizes[i]));
    begin += sizes[i];
  }
  return result;
}

Program::Program(at::IntArrayRef steps, std::vector<std::string> groups)
    : groups_(std::move(groups)) {
  while (!steps.empty()) {
    const at::IntArrayRef fields = take_ints(steps, kIntsPerStep);
    ProgramStep step{static_cast<StepKind>(fields[0] & ~kUneven),
                     fields[1],
                     fields[2],
                     fields[3],
                     fields[4],
                     fields[5]};
    check_step(step, groups_.size());
    if ((fields[0] & kUneven) != 0) {
      add_uneven_values(step, take_ints(steps, take_ints(steps, 1)[0]));
    }
    steps_.push_back(std::move(step));
  }
}

std::int64_t Program::number_of(at::IntArrayRef steps,
                                const std::vector<std::string>& groups) {
  NumberedPrograms& all = numbered_programs();
  const std::lock_guard lock(all.mutex);
  const auto next = static_cast<std::int64_t>(all.programs.size());
  const auto [found, is_new] =
      all.numbers.try_emplace({steps.vec(), groups}, next);
  if (is_new) all.programs.emplace_back(steps, groups);
  return found->second;
}

const Program& Program::find(std::int64_t number) {
  NumberedPrograms& all = numbered_programs();
  const std::lock_guard lock(all.mutex);
  TORCH_CHECK_VALUE(number >= 0 && number < std::ssize(all.programs),
                    "there is no program ", number);
  return all.programs[static_cast<std::size_t>(number)];
}

std::vector<std::int64_t> Program::output_shape(at::IntArrayRef shape) const {
  std::vector<std::int64_t> result = shape.vec();
  const auto rank = static_cast<std::int64_t>(result.size());
  for (const ProgramStep& step : steps_) {
    TORCH_CHECK_VALUE(step.dim < rank && step.to_dim < rank, "reshard of dim ",
                      step.dim, " of a tensor with ", rank, " dims");
    switch (step.kind) {
      case StepKind::kAllToAll:
        split(result, step.to_dim, step, step.to_parts);
        [[fallthrough]];
      case StepKind::kAllGather:
        join(result, step.dim, step);
        break;
      case StepKind::kReduceScatter:
      case StepKind::kSlice:
        split(result, step.dim, step, step.parts);
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
  program_.output_shape(x_.sizes());  // refuses sizes that do not fit
  // Memory is sent as it is: without signs that only the tensor knows of.
  x_ = x_.resolve_conj().resolve_neg();
  // Collectives do not take complex numbers; dims keep their places.
  if (is_complex_) x_ = at::view_as_real(x_);
  const NetworkTimer timer(device_);
  if (x_.numel() > 0) count_program();
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
      return own_part(step).contiguous();
    case StepKind::kReduceScatter:
      return parts_of(x_, step.dim, step.group_size, step.parts);
    case StepKind::kAllReduce:  // in place
      return owned_ ? x_.contiguous() : compact(x_);
    default:
      return parts_of(own_part(step), step.to_dim, step.group_size,
                      step.to_parts);
  }
}

// As long as the longest part of the group.
at::Tensor Execution::own_part(const ProgramStep& step) const {
  return step.is_uneven ? padded(x_, step.dim, longest(step.parts)) : x_;
}

void Execution::end() {
  if (!started_) return;
  x_ = started_->wait();
  started_.reset();
  const ProgramStep& step = program_.steps()[next_ - 1];
  if (step.is_uneven && step.kind == StepKind::kReduceScatter) {
    x_ = x_.narrow(step.dim, 0, step.parts[step.index]);
  }
  if (step.is_uneven && step.kind == StepKind::kAllToAll) {
    x_ = x_.narrow(step.to_dim + 1, 0, step.to_parts[step.index]);
  }
  const bool in_parts =
      step.kind == StepKind::kAllGather || step.kind == StepKind::kAllToAll;
  if (in_parts) x_ = joined(x_, step.dim, step.parts);
}

void Execution::run_local(const ProgramStep& step) {
  if (step.kind == StepKind::kSlice) {
    count(StepKind::kSlice);
    if (step.is_uneven) {
      const at::IntArrayRef parts = step.parts;
      const std::int64_t begin = sum(parts.slice(0, step.index));
      x_ = x_.narrow(step.dim, begin, parts[step.index]);
      return;
    }
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
