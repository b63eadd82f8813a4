#include "runtime/parameter_queue.h"

#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace tensoropt {

ParameterQueue::ParameterQueue(std::int64_t most_gradients)
    : most_gradients_(static_cast<std::size_t>(most_gradients)) {
  TORCH_CHECK_VALUE(most_gradients >= 1, "a queue has place for ",
                    most_gradients, " gradients, give at least 1");
}

void ParameterQueue::begin_value(std::int64_t slot, Program program,
                                 at::Tensor x) {
  values_.insert_or_assign(slot, Execution(std::move(program), std::move(x)));
}

at::Tensor ParameterQueue::take_value(std::int64_t slot) {
  auto found = values_.extract(slot);
  return found ? found.mapped().finish() : at::Tensor();
}

void ParameterQueue::begin_gradient(std::int64_t slot, Program program,
                                    at::Tensor gradient) {
  forget_other_passes();
  if (gradients_.size() == most_gradients_) finish_oldest();
  Execution execution(std::move(program), std::move(gradient));
  if (execution.is_under_way()) {
    gradients_.push_back({slot, std::move(execution)});
  } else {
    ready_[slot] = execution.finish();
  }
}

at::Tensor ParameterQueue::take_gradient(std::int64_t slot) {
  forget_other_passes();
  while (!gradients_.empty()) finish_oldest();
  auto found = ready_.extract(slot);
  return found ? std::move(found.mapped()) : at::Tensor();
}

void ParameterQueue::finish_oldest() {
  UnderWay oldest = std::move(gradients_.front());
  gradients_.pop_front();
  ready_[oldest.slot] = oldest.execution.finish();
}

// What is left then is of a pass that failed.
void ParameterQueue::forget_other_passes() {
  const int pass = torch::autograd::get_current_graph_task_id();
  if (std::exchange(pass_, pass) == pass) return;
  gradients_.clear();
  ready_.clear();
}

}  // namespace tensoropt
