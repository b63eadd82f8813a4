// tensoropt::leaf_gate(leaves) -> gate
// tensoropt::watched_leaves(gate) -> bool
// tensoropt::written_leaves(gate) -> numbers
// tensoropt::give_leaves(gate, gradients) -> bool
// tensoropt::pass_gate(gate, gradients) -> ()
//
// A tensor without elements, of which leaves follow: a node of autograd that
// takes the gate in place of many parameters, and sets their `.grad` itself.
// Autograd finds them behind the gate, as it has to for `inputs=`, for hooks
// and for what else follows from them. Gradients that are autograd's to deliver
// are handed over by `pass_gate`, whereupon the node returns any gradient for
// the gate. They belong to the backward in which they were passed, since a
// graph that is kept may be run by several threads at once, and end with it: it
// may fail before the gate runs.
//
// Otherwise the gate gets none, and the leaves need not hear of it: to run the
// node of each, which then has nothing to add, takes longer than a small model
// does. Those that somebody else holds are told all the same: such as have
// hooks or get gradients of other functions, for which autograd waits.
//
// What a step asks of each leaf is asked of all at once: whether hooks wait for
// a gradient, which ones were written to since the gate was made, and whether
// gradients may be their first ones, which `give_leaves` then makes them.

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/nodes.h"

namespace tensoropt::leaf_gate_op {

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Gradients = c10::List<std::optional<at::Tensor>>;

using torch::autograd::AccumulateGrad;

// Whether nobody but this edge would notice that the node does not run.
bool is_unnoticed(const Edge& edge) {
  Node* const node = edge.function.get();
  return edge.function.use_count() == 1 &&
         dynamic_cast<AccumulateGrad*>(node) != nullptr &&
         node->pre_hooks().empty() && node->post_hooks().empty() &&
         node->tensor_pre_hooks().empty() &&
         node->tensor_post_acc_grad_hooks() == nullptr;
}

bool is_watched(AccumulateGrad& leaf) {
  return !leaf.tensor_pre_hooks().empty() ||
         leaf.tensor_post_acc_grad_hooks() != nullptr;
}

// Whether a gradient would be all that there is to do.
bool may_be_given(AccumulateGrad& leaf) {
  return leaf.variable.requires_grad() && !leaf.variable.grad().defined() &&
         !is_watched(leaf);
}

// Of gradients, by leaf; those that are none count as zeros.
variable_list sum_of(variable_list sums, variable_list more) {
  if (sums.empty()) return more;
  for (std::size_t i = 0; i < more.size(); ++i) {
    if (!more[i].defined()) continue;
    sums[i] = sums[i].defined() ? sums[i] + more[i] : std::move(more[i]);
  }
  return sums;
}

class LeafGate : public Node {
 public:
  explicit LeafGate(at::TensorList leaves) {
    torch::autograd::edge_list edges;
    edges.reserve(leaves.size());
    leaves_.reserve(leaves.size());
    versions_.reserve(leaves.size());
    for (const at::Tensor& leaf : leaves) {
      edges.push_back(torch::autograd::impl::gradient_edge(leaf));
      Node* const node = edges.back().function.get();
      leaves_.push_back(dynamic_cast<AccumulateGrad*>(node));
      versions_.push_back(leaf._version());
    }
    set_next_edges(std::move(edges));
  }

  // As many as there are; null: the tensor is none.
  const std::vector<AccumulateGrad*>& leaves() const { return leaves_; }
  const std::vector<std::int64_t>& versions() const { return versions_; }

  // For the node of the backward that runs, which owns them: its callbacks live
  // as long as it does, whether or not it comes to call them.
  void pass(variable_list gradients) {
    check_not_left_out(gradients);
    const auto owned = std::make_shared<variable_list>(std::move(gradients));
    torch::autograd::Engine::get_default_engine().queue_callback([owned] {});
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(passed_, [](const Passed& one) { return one.own.expired(); });
    passed_.push_back({torch::autograd::get_current_graph_task_id(), owned});
  }

  variable_list apply(variable_list&& /*gradients*/) override {
    if (variable_list passed = taken(); !passed.empty()) return passed;
    if (!torch::autograd::get_current_graph_task_keep_graph()) leave_out();
    return variable_list(next_edges().size());
  }

 private:
  struct Passed {
    int backward;
    std::weak_ptr<variable_list> own;
  };

  // What was passed in the backward that runs, by all functions that take the
  // gate; empty: nothing.
  variable_list taken() {
    variable_list sums;
    for (variable_list& own : passed_in_this_backward()) {
      sums = sum_of(std::move(sums), std::move(own));
    }
    return sums;
  }

  std::vector<variable_list> passed_in_this_backward() {
    const int backward = torch::autograd::get_current_graph_task_id();
    std::vector<variable_list> found;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Passed& one : passed_) {
      if (one.backward != backward) continue;
      if (const auto own = one.own.lock()) {
        found.push_back(std::exchange(*own, {}));
      }
    }
    return found;
  }

  // Edges of the node that runs, which may have left out some before. Their
  // nodes live as long as this one, since autograd knows those of a backward by
  // their addresses, and `leaves_` points to them.
  void leave_out() {
    auto& edges = next_edges();
    bool is_any_left = false;
    left_out_.reserve(left_out_.size() + edges.size());
    for (Edge& edge : edges) {
      if (!edge.is_valid()) continue;
      if (is_unnoticed(edge)) {
        left_out_.push_back(std::exchange(edge, Edge()));
      } else {
        is_any_left = true;
      }
    }
    if (!is_any_left) edges.clear();
  }

  // What is for a leaf that the backward before has left out would be lost.
  void check_not_left_out(const variable_list& gradients) {
    if (left_out_.empty()) return;
    const auto& edges = next_edges();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const bool is_there = i < edges.size() && edges[i].is_valid();
      TORCH_CHECK(
          is_there || leaves_[i] == nullptr || !gradients[i].defined(),
          "Trying to backward through the graph a second time: the gate has "
          "left out its leaves; give retain_graph=True the first time");
    }
  }

  std::vector<AccumulateGrad*> leaves_;
  std::vector<std::int64_t> versions_;
  std::vector<Passed> passed_;  // of backwards that run, and some that ended
  torch::autograd::edge_list left_out_;
};

LeafGate& gate_of(const at::Tensor& gate) {
  auto* const node = dynamic_cast<LeafGate*>(gate.grad_fn().get());
  TORCH_CHECK_VALUE(node != nullptr, "the tensor is the gate of no leaves");
  return *node;
}

at::Tensor leaf_gate(at::TensorList leaves) {
  TORCH_CHECK_VALUE(!leaves.empty(), "a gate is for no leaves");
  return at::empty({0}, leaves.front().options().dtype(at::kFloat));
}

at::Tensor leaf_gate_autograd(at::TensorList leaves) {
  TORCH_CHECK_VALUE(!leaves.empty(), "a gate is for no leaves");
  const auto options = at::TensorOptions(leaves.front().device());
  at::Tensor gate = [&options] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return at::empty({0}, options.dtype(at::kFloat));
  }();
  if (!at::GradMode::is_enabled()) return gate;
  const NodePointer node = make_node<LeafGate>(leaves);
  torch::autograd::set_history(gate, node);
  return gate;
}

bool watched_leaves(const at::Tensor& gate) {
  const auto& leaves = gate_of(gate).leaves();
  return std::any_of(leaves.begin(), leaves.end(), [](AccumulateGrad* leaf) {
    return leaf != nullptr && is_watched(*leaf);
  });
}

std::vector<std::int64_t> written_leaves(const at::Tensor& gate) {
  const LeafGate& own = gate_of(gate);
  std::vector<std::int64_t> written;
  for (std::size_t i = 0; i < own.leaves().size(); ++i) {
    const AccumulateGrad* const leaf = own.leaves()[i];
    if (leaf != nullptr && leaf->variable._version() != own.versions()[i]) {
      written.push_back(static_cast<std::int64_t>(i));
    }
  }
  return written;
}

void check_count(const Gradients& gradients, const LeafGate& gate) {
  TORCH_CHECK_VALUE(gradients.size() == gate.leaves().size(), gradients.size(),
                    " gradients are for the ", gate.leaves().size(),
                    " leaves of a gate");
}

bool give_leaves(const at::Tensor& gate, const Gradients& gradients) {
  const LeafGate& own = gate_of(gate);
  check_count(gradients, own);
  std::vector<std::pair<AccumulateGrad*, at::Tensor>> given;
  given.reserve(gradients.size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::optional<at::Tensor> gradient = gradients[i];
    if (!gradient.has_value()) continue;
    AccumulateGrad* const leaf = own.leaves()[i];
    if (leaf == nullptr || !may_be_given(*leaf)) return false;
    given.emplace_back(leaf, *gradient);
  }
  for (auto& [leaf, gradient] : given) {
    leaf->variable.mutable_grad() = std::move(gradient);
  }
  return true;
}

void pass_gate(const at::Tensor& gate, const Gradients& gradients) {
  LeafGate& own = gate_of(gate);
  check_count(gradients, own);
  variable_list passed;
  passed.reserve(gradients.size());
  for (const std::optional<at::Tensor>& gradient : gradients) {
    passed.push_back(gradient.value_or(at::Tensor()));
  }
  own.pass(std::move(passed));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def("leaf_gate(Tensor[] leaves) -> Tensor");
  library.def("watched_leaves(Tensor gate) -> bool");
  library.def("written_leaves(Tensor gate) -> int[]");
  library.def("give_leaves(Tensor gate, Tensor?[] gradients) -> bool");
  library.def("pass_gate(Tensor gate, Tensor?[] gradients) -> ()");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("leaf_gate", leaf_gate);
  library.impl("watched_leaves", watched_leaves);
  library.impl("written_leaves", written_leaves);
  library.impl("give_leaves", give_leaves);
  library.impl("pass_gate", pass_gate);
}
// Before anything that is no plain tensor is asked what it makes of the call.
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("leaf_gate", leaf_gate_autograd);
  library.impl("watched_leaves", watched_leaves);
  library.impl("written_leaves", written_leaves);
  library.impl("give_leaves", give_leaves);
  library.impl("pass_gate", pass_gate);
}

}  // namespace tensoropt::leaf_gate_op
