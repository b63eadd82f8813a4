#include "runtime/program.h"

#include <utility>

namespace tensoropt {

namespace {

constexpr std::size_t kIntsPerStep = 6;

bool is_local(ProgramKind kind) {
  return kind == ProgramKind::kSlice || kind == ProgramKind::kMask;
}

void check_step(const ProgramStep& step, std::size_t num_groups) {
  const auto kind = static_cast<int>(step.kind);
  TORCH_CHECK_VALUE(kind >= 0 && kind <= 5, "reshard step of kind ", kind);
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

// Runs the steps on one rank. `x_` is the only reference to an intermediate.
class Runner {
 public:
  explicit Runner(const at::Tensor& input) : input_(input), x_(input) {}

  void run(const ProgramStep& step, const std::string* group_name);

  // The result in memory of its own.
  at::Tensor take() {
    const auto bytes = static_cast<std::size_t>(x_.numel()) * x_.itemsize();
    const bool compact = x_.is_contiguous() && x_.storage().nbytes() == bytes;
    return compact && !is_input() ? std::move(x_) : copy();
  }

 private:
  bool is_input() const { return x_.is_alias_of(input_); }
  at::Tensor copy() const { return x_.clone(at::MemoryFormat::Contiguous); }

  void gather(std::int64_t dim, const Group& group) {
    at::Tensor parts = all_gather(x_.contiguous(), group);
    x_ = at::Tensor();
    x_ = joined(parts, dim);
  }

  void scatter(const ProgramStep& step, const Group& group) {
    at::Tensor parts = parts_of(x_, step.dim, step.group_size);
    x_ = at::Tensor();
    x_ = reduce_scatter(parts, group);
  }

  void reduce(const Group& group) {
    x_ = is_input() ? copy() : x_.contiguous();
    all_reduce(x_, group);
  }

  void exchange(const ProgramStep& step, const Group& group) {
    at::Tensor parts = parts_of(x_, step.to_dim, step.group_size);
    x_ = at::Tensor();
    parts = all_to_all(parts, group);
    x_ = joined(parts, step.dim);
  }

  void slice(const ProgramStep& step) {
    const std::int64_t size = x_.size(step.dim) / step.group_size;
    x_ = x_.narrow(step.dim, size * step.index, size);
  }

  void mask(const ProgramStep& step) {
    if (step.index != 0) x_ = at::zeros_like(x_);
  }

  const at::Tensor& input_;
  at::Tensor x_;
};

void Runner::run(const ProgramStep& step, const std::string* group_name) {
  if (group_name == nullptr) {
    const bool slices = step.kind == ProgramKind::kSlice;
    count(slices ? Counter::kSlice : Counter::kMask);
    return slices ? slice(step) : mask(step);
  }
  const Group group = find_group(*group_name);
  TORCH_CHECK_VALUE(group->getSize() == step.group_size, "group '", *group_name,
                    "' has ", group->getSize(), " ranks, the reshard needs ",
                    step.group_size);
  switch (step.kind) {
    case ProgramKind::kAllGather:
      return gather(step.dim, group);
    case ProgramKind::kReduceScatter:
      return scatter(step, group);
    case ProgramKind::kAllReduce:
      return reduce(group);
    default:
      return exchange(step, group);
  }
}

}  // namespace

Program::Program(at::IntArrayRef steps, const std::vector<std::string>& groups)
    : groups_(groups) {
  TORCH_CHECK_VALUE(steps.size() % kIntsPerStep == 0, "a reshard program has ",
                    kIntsPerStep, " integers per step, got ", steps.size());
  for (std::size_t i = 0; i < steps.size(); i += kIntsPerStep) {
    steps_.push_back({static_cast<ProgramKind>(steps[i]), steps[i + 1],
                      steps[i + 2], steps[i + 3], steps[i + 4], steps[i + 5]});
    check_step(steps_.back(), groups.size());
  }
}

std::vector<std::int64_t> Program::output_shape(at::IntArrayRef shape) const {
  std::vector<std::int64_t> result = shape.vec();
  const auto rank = static_cast<std::int64_t>(result.size());
  for (const ProgramStep& step : steps_) {
    TORCH_CHECK_VALUE(step.dim < rank && step.to_dim < rank, "reshard of dim ",
                      step.dim, " of a tensor with ", rank, " dims");
    switch (step.kind) {
      case ProgramKind::kAllToAll:
        split(result, step.to_dim, step.group_size);
        [[fallthrough]];
      case ProgramKind::kAllGather:
        join(result, step.dim, step.group_size);
        break;
      case ProgramKind::kReduceScatter:
      case ProgramKind::kSlice:
        split(result, step.dim, step.group_size);
        break;
      default:
        break;
    }
  }
  return result;
}

at::Tensor run(const Program& program, const at::Tensor& x) {
  if (program.empty()) return x;
  program.output_shape(x.sizes());  // refuse sizes that do not divide
  const NetworkTimer timer(x);
  count(Counter::kProgram);
  Runner runner(x);
  for (const ProgramStep& step : program.steps()) {
    const bool local = is_local(step.kind);
    runner.run(step, local ? nullptr : &program.group_of(step));
  }
  return runner.take();
}

}  // namespace tensoropt
