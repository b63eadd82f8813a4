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

  // In backward: the gradient resharded. Undefined if there is none, and if it
  // waits in the queue, in this slot. Throws c10::Error if somebody
  // differentiates backward.
  at::Tensor run(at::Tensor gradient, std::int64_t slot) const;
};

}  // namespace tensoropt
