// What operators with kernels for autograd of their own have in common.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <type_traits>

namespace tensoropt {

// Calls the operator of this name, which has the signature of `kernel`, below
// autograd, where simulations still see the call.
template <auto kernel, typename... Arguments>
auto call_below_autograd(const char* name, const Arguments&... arguments) {
  using Signature = std::remove_pointer_t<decltype(kernel)>;
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow(name, "")
                             .typed<Signature>();
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(arguments...);
}

inline bool is_differentiated(const at::Tensor& x) {
  return at::GradMode::is_enabled() && x.requires_grad();
}

}  // namespace tensoropt
