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
  Pass& pass = this_pass();
  for (UnderWay& earlier : pass.under_way) earlier.execution.advance();
  if (pass.under_way.size() == most_gradients_) pass.finish_oldest();
  Execution execution(std::move(program), std::move(gradient));
  if (execution.is_under_way()) {
    pass.under_way.push_back({slot, std::move(execution)});
  } else {
    pass.ready[slot] = execution.finish();
  }
}

at::Tensor ParameterQueue::take_gradient(std::int64_t slot) {
  Pass& pass = this_pass();
  while (!pass.ready.contains(slot) && !pass.under_way.empty()) {
    pass.finish_oldest();
  }
  auto found = pass.ready.extract(slot);
  return found ? std::move(found.mapped()) : at::Tensor();
}

void ParameterQueue::Pass::finish_oldest() {
  UnderWay oldest = std::move(under_way.front());
  under_way.pop_front();
  ready[oldest.slot] = oldest.execution.finish();
}

// Numbers ascend: one below may be around this pass, one above has ended.
ParameterQueue::Pass& ParameterQueue::this_pass() {
  const int number = torch::autograd::get_current_graph_task_id();
  passes_.erase(passes_.upper_bound(number), passes_.end());
  return passes_[number];
}

}  // namespace tensoropt
