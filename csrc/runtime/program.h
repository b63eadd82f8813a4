// An encoded reshard (common/step_code.h) and its execution on one rank.
//
//   Program program(steps, group_names);
//   at::Tensor y = run(program, x);        // collective
//   Execution execution(program, x);       // up to its first collective
//   y = execution.finish();                // the rest
//   program.output_shape(x.sizes());       // without running
//
// Every rank of the groups must run the same steps. Intermediates are freed as
// soon as the next step has read them. The result is contiguous and has memory
// of its own, unless the program is empty: then it is `x`.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/step_code.h"
#include "runtime/collectives.h"

namespace tensoropt {

struct ProgramStep {
  StepKind kind;
  std::int64_t dim;
  std::int64_t to_dim;
  std::int64_t group_slot;  // -1 for local steps
  std::int64_t group_size;
  std::int64_t index;  // of this rank in its group
  // Where parts of the tensor differ in size (common/step_code.h), else none.
  bool is_uneven = false;
  std::int64_t most_elements = 0;
  std::vector<std::int64_t> parts = {};     // of `dim`
  std::vector<std::int64_t> to_parts = {};  // of `to_dim`

  // The elements of the operand `x` on the rank that has most of them.
  std::int64_t num_elements(const at::Tensor& x) const {
    return is_uneven ? most_elements : x.numel();
  }
};

// The parts of a dim, numbered by a new dim 0; contiguous. Those of `sizes`,
// all as long as the longest, with zeros at their ends; without sizes equal
// ones.
at::Tensor parts_of(const at::Tensor& x, std::int64_t dim, std::int64_t count,
                    at::IntArrayRef sizes);

class Program {
 public:
  // Throws c10::ValueError if the integers are not those of a program for this
  // number of groups.
  Program(at::IntArrayRef steps, std::vector<std::string> groups);

  bool empty() const { return steps_.empty(); }
  const std::vector<ProgramStep>& steps() const { return steps_; }
  const std::string& group_of(const ProgramStep& step) const {
    return groups_[step.group_slot];
  }

  // A number by which operators name a program, the same for the same one:
  // lists among their arguments take longer to pass than most programs to
  // begin.
  static std::int64_t number_of(at::IntArrayRef steps,
                                const std::vector<std::string>& groups);
  // Throws c10::ValueError if there is none.
  static const Program& find(std::int64_t number);

  // The local shape after the program. Throws c10::ValueError if a size is not
  // the one that a step cuts or joins.
  std::vector<std::int64_t> output_shape(at::IntArrayRef shape) const;

 private:
  std::vector<ProgramStep> steps_;
  std::vector<std::string> groups_;
};

// A program at work. What was started goes on while others compute; collectives
// of the same groups must be started in the same order on all ranks.
class Execution {
 public:
  // Runs until the first collective is under way. Throws c10::ValueError if a
  // size is not the one that a step cuts or joins.
  Execution(Program program, at::Tensor x);

  // Whether a collective was started.
  bool is_under_way() const { return started_.has_value(); }

  // Where more collectives follow: waits, and starts the next one.
  void advance();

  // Waits, and runs the rest. Once.
  at::Tensor finish();

 private:
  bool has_steps() const { return next_ < program_.steps().size(); }
  void begin_next();
  void begin(const ProgramStep& step);
  at::Tensor operand_of(const ProgramStep& step) const;
  at::Tensor own_part(const ProgramStep& step) const;
  void end();
  void run_local(const ProgramStep& step);
  at::Tensor take();

  Program program_;
  c10::Device device_;
  bool is_complex_ = false;         // then `x_` is a view as real numbers
  std::size_t next_ = 0;            // step
  at::Tensor x_;                    // the only reference to an intermediate
  bool owned_ = false;              // `x_` is no view of the input
  std::optional<Started> started_;  // of the step before `next_`
};

at::Tensor run(Program program, const at::Tensor& x);

}  // namespace tensoropt
