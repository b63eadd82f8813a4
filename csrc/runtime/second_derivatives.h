// Backward that is differentiated itself (create_graph=True).
//
// The gradient of a gradient lies as the value does: what is a sum over ranks
// of gradients belongs to a value that all ranks have alike, and the other way
// round. So the backward of reshard(x, forward, backward) is
// reshard(gradient, backward, forward).
//
//   if (is_differentiated_again()) {
//     return {reshard_again(gradients[0], backward, groups, forward, ...)};
//   }
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tensoropt {

// In backward: whether its results shall have gradients.
inline bool is_differentiated_again() { return at::GradMode::is_enabled(); }

// tensoropt::reshard, of what backward computes.
at::Tensor reshard_again(const at::Tensor& x, at::IntArrayRef forward,
                         const std::vector<std::string>& forward_groups,
                         at::IntArrayRef backward,
                         const std::vector<std::string>& backward_groups,
                         std::optional<at::ScalarType> dtype = {},
                         std::optional<at::ScalarType> reduce_dtype = {});

// What a gradient is on the ranks of a group.
enum class GradientOn { kAll, kEach };

// The sum over the ranks of the group. Its gradient is the same on all ranks,
// or each has a part of it, whose sum it is. Without a group (an empty name)
// the tensor itself.
at::Tensor summed_again(const at::Tensor& x, const std::string& group,
                        GradientOn gradient);

// The tensor itself, which all ranks have alike: its gradient is the sum of
// theirs.
at::Tensor shared_again(const at::Tensor& x, const std::string& group);

// The gradients of the operands, some of which may be undefined, where backward
// has no kernel that can be differentiated: `compute` computes the result of
// the operator once more, of views of its operands, by operators that have.
torch::autograd::variable_list gradients_again(
    const torch::autograd::variable_list& operands, const at::Tensor& gradient,
    const std::function<at::Tensor(const torch::autograd::variable_list&)>&
        compute);

}  // namespace tensoropt
