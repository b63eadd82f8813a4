// tensoropt::reshard_gradients(xs, steps, groups, queue, slots, reduce_dtype)
//     -> xs
//
// Parameters as await_gradients gave them, unchanged. In backward the program
// of each gradient, the same for all, is begun in its slot of the queue when
// the gradient is there.
//
// reshard_parameter does that as well, by a call for each parameter where it is
// used; this is one call at the start of forward. Autograd runs what came first
// when nothing else is ready, which for gradients would be the end of backward.
// So these nodes have numbers above all that compute, as those have that
// accumulate gradients. No two have the same: ties would be broken by what else
// is ready, and ranks may differ in that.

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/autograd_calls.h"
#include "runtime/gradient_program.h"
#include "runtime/nodes.h"

namespace tensoropt::reshard_gradients_op {

namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;
using Strings = std::vector<std::string>;
using DType = std::optional<at::ScalarType>;

class GradientReshard : public Node {
 public:
  GradientReshard(std::shared_ptr<const GradientProgram> program,
                  std::int64_t slot)
      : Node(std::numeric_limits<std::uint64_t>::max() - 1 -
             static_cast<std::uint64_t>(slot)),
        program_(std::move(program)),
        slot_(slot) {}

  variable_list apply(variable_list&& gradients) override {
    return {program_->run(std::move(gradients[0]), slot_)};
  }

 private:
  std::shared_ptr<const GradientProgram> program_;
  std::int64_t slot_;
};

std::vector<at::Tensor> reshard_gradients(
    at::TensorList xs, at::IntArrayRef /*steps*/, const Strings& /*groups*/,
    std::int64_t /*queue*/, at::IntArrayRef /*slots*/, DType /*reduce_dtype*/) {
  std::vector<at::Tensor> views;
  for (const at::Tensor& x : xs) views.push_back(x.view_as(x));
  return views;
}

std::vector<at::Tensor> reshard_gradients_autograd(
    at::TensorList xs, at::IntArrayRef steps, const Strings& groups,
    std::int64_t queue, at::IntArrayRef slots, DType reduce_dtype) {
  TORCH_CHECK_VALUE(xs.size() == slots.size(), xs.size(),
                    " gradients are resharded in ", slots.size(), " slots");
  const auto program = std::make_shared<const GradientProgram>(GradientProgram{
      steps.vec(), groups, reduce_dtype, ParameterQueue::find(queue)});
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < xs.size(); ++i) {
    const at::Tensor& x = xs[i];
    if (!is_differentiated(x)) {
      results.push_back(x.view_as(x));
      continue;
    }
    const NodePointer node = make_node<GradientReshard>(program, slots[i]);
    node->set_next_edges(torch::autograd::collect_next_edges(x));
    results.push_back(x.detach());
    torch::autograd::set_history(results.back(), node);
  }
  return results;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "reshard_gradients(Tensor(a)[] xs, int[] steps, str[] groups, int queue, "
      "int[] slots, *, ScalarType? reduce_dtype=None) -> Tensor(a)[]");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("reshard_gradients", reshard_gradients);
}
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("reshard_gradients", reshard_gradients_autograd);
}

}  // namespace tensoropt::reshard_gradients_op
