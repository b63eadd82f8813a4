// Nodes of autograd, whose pointers differ between the versions of PyTorch.
//
//   const NodePointer node = make_node<Own>(arguments...);
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace tensoropt {

using NodePointer = decltype(torch::autograd::Edge::function);

template <typename Made, typename... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer,
                               std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Made>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<Made>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace tensoropt
