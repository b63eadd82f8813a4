// What is done to gradients in backward: a program, alike for all of them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/parameter_queue.h"

namespace tensoropt {

struct GradientProgram {
  std::vector<std::int64_t> steps;  // encoded
  std::vector<std::string> groups;
  std::optional<at::ScalarType> dtype;  // the gradient is cast to it before
  ParameterQueue::Pointer queue;        // where gradients are awaited, if any
  // Of the value: what is done where this program is differentiated.
  std::vector<std::int64_t> value_steps = {};
  std::vector<std::string> value_groups = {};

  // In backward: the gradient resharded. Undefined if there is none, and if it
  // waits in the queue, in this slot. Where backward is differentiated, nothing
  // waits.
  at::Tensor run(at::Tensor gradient, std::int64_t slot) const;
};

}  // namespace tensoropt
