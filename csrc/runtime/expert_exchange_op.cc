// What experts on several ranks need of each other (routed_experts_op.cc).
//
// tensoropt::_route(experts, num_experts) -> (order, ends)
//     The choices, sorted by expert: those of expert i end before ends[i].
// tensoropt::_routed_counts(ends, first_experts, num_experts, num_rows, group)
//     -> int[]
//     Peer i has `num_experts` experts from first_experts[i] on. For each peer
//     where its rows begin here; for each peer how many there are; for each
//     peer and each expert of this rank how many rows it sends. Without a group
//     there is one peer, this rank. Waits for the device once.
// tensoropt::_order_by_expert(like, counts, num_experts) -> (order, ends)
//     For rows that lie by peer and then by expert, `counts` of each, [peers]
//     [experts]: their order by expert.
// tensoropt::exchange_rows(rows, sends, receives, group)
//     Rows for each rank of the group, for those that each rank sends here; in
//     backward gradients go the other way.
// tensoropt::exchange_gates(pieces, group, to_units)
//     GateExchange::to_units of [gates, ...], or to_rows; the other one of its
//     gradient.
//
// On meta tensors, which have no numbers, every expert gets as many rows.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <numeric>
#include <tuple>
#include <vector>

#include "runtime/gate_exchange.h"
#include "runtime/second_derivatives.h"

namespace tensoropt::expert_exchange_op {

namespace {

using torch::autograd::AutogradContext;
using Sizes = std::vector<std::int64_t>;

std::tuple<at::Tensor, at::Tensor> route(const at::Tensor& experts,
                                         std::int64_t num_experts) {
  auto [sorted, order] = experts.flatten().sort();
  const at::Tensor numbers = at::arange(num_experts, sorted.options());
  at::Tensor ends = at::searchsorted(sorted, numbers, /*out_int32=*/true,
                                     /*right=*/true);
  // On other devices reading a number would wait for them.
  if (sorted.device().is_cpu() && sorted.numel() > 0) {
    TORCH_CHECK_INDEX(sorted[0].item<std::int64_t>() >= 0 &&
                          sorted[-1].item<std::int64_t>() < num_experts,
                      "routed_experts: choices from ", sorted[0].item(), " to ",
                      sorted[-1].item(), " of ", num_experts, " experts");
  }
  return {order, ends};
}

std::tuple<at::Tensor, at::Tensor> route_meta(const at::Tensor& experts,
                                              std::int64_t num_experts) {
  return {at::empty({experts.numel()}, experts.options()),
          at::empty({num_experts}, experts.options().dtype(at::kInt))};
}

// `end[i]`: where the rows of expert i end.
Sizes starts_and_sends(const Sizes& end, at::IntArrayRef first_experts,
                       std::int64_t num_experts) {
  Sizes starts;
  Sizes sends;
  for (const std::int64_t first : first_experts) {
    starts.push_back(first > 0 ? end[first - 1] : 0);
    sends.push_back(end[first + num_experts - 1] - starts.back());
  }
  starts.insert(starts.end(), sends.begin(), sends.end());
  return starts;
}

Sizes routed_counts(const at::Tensor& ends, at::IntArrayRef first_experts,
                    std::int64_t num_experts, std::int64_t /*num_rows*/,
                    const std::string& group) {
  const at::Tensor all = ends.to(at::kLong);
  const at::Tensor counts = at::diff(all, 1, 0, at::zeros({1}, all.options()));
  std::vector<at::Tensor> blocks;
  for (const std::int64_t first : first_experts) {
    blocks.push_back(counts.narrow(0, first, num_experts));
  }
  at::Tensor received = at::stack(blocks);
  if (!group.empty()) received = all_to_all(received, find_group(group));
  const at::Tensor both =
      at::cat({all, received.flatten()}).to(at::kCPU).contiguous();
  const std::int64_t* number = both.const_data_ptr<std::int64_t>();
  Sizes result = starts_and_sends({number, number + all.numel()}, first_experts,
                                  num_experts);
  result.insert(result.end(), number + all.numel(), number + both.numel());
  return result;
}

Sizes routed_counts_meta(const at::Tensor& ends, at::IntArrayRef first_experts,
                         std::int64_t num_experts, std::int64_t num_rows,
                         const std::string& /*group*/) {
  Sizes end;
  for (std::int64_t i = 1; i <= ends.numel(); ++i) {
    end.push_back(num_rows * i / ends.numel());
  }
  Sizes result = starts_and_sends(end, first_experts, num_experts);
  for (std::size_t peer = 0; peer < first_experts.size(); ++peer) {
    for (std::int64_t i = 0; i < num_experts; ++i) {
      const std::int64_t expert = first_experts[0] + i;
      result.push_back(end[expert] - (expert > 0 ? end[expert - 1] : 0));
    }
  }
  return result;
}

std::tuple<at::Tensor, at::Tensor> order_by_expert(const at::Tensor& like,
                                                   at::IntArrayRef counts,
                                                   std::int64_t num_experts) {
  Sizes first(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), first.begin(),
                      std::int64_t{0});
  Sizes order;
  Sizes ends;
  for (std::int64_t expert = 0; expert < num_experts; ++expert) {
    for (std::size_t i = expert; i < counts.size(); i += num_experts) {
      for (std::int64_t row = 0; row < counts[i]; ++row) {
        order.push_back(first[i] + row);
      }
    }
    ends.push_back(static_cast<std::int64_t>(order.size()));
  }
  return {at::tensor(order, at::kLong).to(like.device()),
          at::tensor(ends, at::kInt).to(like.device())};
}

std::tuple<at::Tensor, at::Tensor> order_by_expert_meta(
    const at::Tensor& like, at::IntArrayRef counts, std::int64_t num_experts) {
  const std::int64_t rows =
      std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  return {at::empty({rows}, like.options().dtype(at::kLong)),
          at::empty({num_experts}, like.options().dtype(at::kInt))};
}

at::Tensor exchange_rows(const at::Tensor& rows, at::IntArrayRef sends,
                         at::IntArrayRef receives, const std::string& group) {
  return all_to_all(rows.contiguous(), sends.vec(), receives.vec(),
                    find_group(group));
}

at::Tensor exchange_rows_meta(const at::Tensor& rows, at::IntArrayRef /*sends*/,
                              at::IntArrayRef receives,
                              const std::string& /*group*/) {
  Sizes shape = rows.sizes().vec();
  shape[0] = std::accumulate(receives.begin(), receives.end(), std::int64_t{0});
  return at::empty(shape, rows.options());
}

at::Tensor call_exchange_rows(const at::Tensor& rows, at::IntArrayRef sends,
                              at::IntArrayRef receives,
                              const std::string& group) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tensoropt::exchange_rows", "")
                             .typed<decltype(exchange_rows)>();
  return op.call(rows, sends, receives, group);
}

at::Tensor exchange_rows_autograd(const at::Tensor& rows, at::IntArrayRef sends,
                                  at::IntArrayRef receives,
                                  const std::string& group);

at::Tensor exchange_gates_autograd(const at::Tensor& pieces,
                                   const std::string& group, bool to_units);

struct ExchangeRows : torch::autograd::Function<ExchangeRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const Sizes& sends, const Sizes& receives,
                            const std::string& group) {
    context->saved_data["sends"] = sends;
    context->saved_data["receives"] = receives;
    context->saved_data["group"] = group;
    return call_exchange_rows(rows, sends, receives, group);
  }

  static torch::autograd::variable_list backward(
      AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    auto& saved = context->saved_data;
    const auto exchange =
        is_differentiated_again() ? exchange_rows_autograd : call_exchange_rows;
    return {
        exchange(gradients[0], saved["receives"].toIntVector(),
                 saved["sends"].toIntVector(), saved["group"].toStringRef()),
        {},
        {},
        {}};
  }
};

at::Tensor exchange_rows_autograd(const at::Tensor& rows, at::IntArrayRef sends,
                                  at::IntArrayRef receives,
                                  const std::string& group) {
  return ExchangeRows::apply(rows, sends.vec(), receives.vec(), group);
}

at::Tensor exchange_gates(const at::Tensor& pieces, const std::string& group,
                          bool to_units) {
  const GateExchange exchange(find_group(group), pieces.size(0));
  const at::Tensor entries = pieces.contiguous();
  return to_units ? exchange.to_units(entries) : exchange.to_rows(entries);
}

at::Tensor exchange_gates_meta(const at::Tensor& pieces,
                               const std::string& /*group*/,
                               bool /*to_units*/) {
  return at::empty(pieces.sizes(), pieces.options());
}

at::Tensor call_exchange_gates(const at::Tensor& pieces,
                               const std::string& group, bool to_units) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tensoropt::exchange_gates", "")
                             .typed<decltype(exchange_gates)>();
  return op.call(pieces, group, to_units);
}

struct ExchangeGates : torch::autograd::Function<ExchangeGates> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& pieces,
                            const std::string& group, bool to_units) {
    context->saved_data["group"] = group;
    context->saved_data["to_units"] = to_units;
    return call_exchange_gates(pieces, group, to_units);
  }

  static torch::autograd::variable_list backward(
      AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    auto& saved = context->saved_data;
    const auto exchange = is_differentiated_again() ? exchange_gates_autograd
                                                    : call_exchange_gates;
    return {exchange(gradients[0], saved["group"].toStringRef(),
                     !saved["to_units"].toBool()),
            {},
            {}};
  }
};

at::Tensor exchange_gates_autograd(const at::Tensor& pieces,
                                   const std::string& group, bool to_units) {
  return ExchangeGates::apply(pieces, group, to_units);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def("_route(Tensor experts, int num_experts) -> (Tensor, Tensor)");
  library.def(
      "_routed_counts(Tensor ends, int[] first_experts, int num_experts, "
      "int num_rows, str group) -> int[]");
  library.def(
      "_order_by_expert(Tensor like, int[] counts, int num_experts) -> "
      "(Tensor, Tensor)");
  library.def(
      "exchange_rows(Tensor rows, int[] sends, int[] receives, str group) -> "
      "Tensor");
  library.def(
      "exchange_gates(Tensor pieces, str group, bool to_units=True) -> Tensor");
}
// Kernels that look at numbers are those of devices: simulations, which run
// all others on tensors without memory, take their meta kernels.
TORCH_LIBRARY_IMPL(tensoropt, CPU, library) {
  library.impl("_route", route);
  library.impl("_routed_counts", routed_counts);
  library.impl("_order_by_expert", order_by_expert);
}
TORCH_LIBRARY_IMPL(tensoropt, CUDA, library) {
  library.impl("_route", route);
  library.impl("_routed_counts", routed_counts);
  library.impl("_order_by_expert", order_by_expert);
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("exchange_rows", exchange_rows);
  library.impl("exchange_gates", exchange_gates);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("_route", route_meta);
  library.impl("_routed_counts", routed_counts_meta);
  library.impl("_order_by_expert", order_by_expert_meta);
  library.impl("exchange_rows", exchange_rows_meta);
  library.impl("exchange_gates", exchange_gates_meta);
}
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("exchange_rows", exchange_rows_autograd);
  library.impl("exchange_gates", exchange_gates_autograd);
}

}  // namespace tensoropt::expert_exchange_op
