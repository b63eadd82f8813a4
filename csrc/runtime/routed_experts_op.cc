// tensoropt::routed_experts(x, experts, weights, up, down, product, activation,
//                           gated, transposed)
//
// Top-k routed experts. Token n, x[n] of [n, d], goes through the k experts
// experts[n] of [n, k], each a product with up [e, d, w], an activation and a
// product with down [e, f, d]; the results are multiplied with weights[n] and
// summed. `product` is the operator that multiplies rows sorted by expert with
// the matrix of theirs. With gates, w = 2 f: the activation of the first half
// of the columns times the second half. `transposed`: the matrices are given as
// linear layers have them, up [e, w, d] and down [e, d, f]. Calls are those
// that Hugging Face's experts make, so that the numbers are theirs to the bit.
//
// tensoropt::routed_experts_shard(..., num_experts, first_experts,
//                                 exchange_group, units_group)
//
// The same on a rank that has some of the `num_experts` experts, as many as
// `up` has matrices:
//  - those from first_experts[0] on, without a group: x, experts and weights
//    are all that any rank has for these experts; choices of other experts give
//    zeros, the sum over the ranks is the result;
//  - with an exchange group, whose rank i has those from first_experts[i] on:
//    each rank has tokens of its own, sends rows to the ranks that have their
//    experts and gets the results back, both by all-to-all. If the group does
//    not have all experts, choices of others give zeros as above.
// With a units group, a rank has a block of the columns w of `up` and of the
// rows f of `down`; the result is Partial over it.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <numeric>
#include <string>
#include <tuple>
#include <vector>

namespace tensoropt::routed_experts_op {

namespace {

using Sizes = std::vector<std::int64_t>;

// Calls an operator of this library by name, through the dispatcher.
template <typename Signature, typename... Arguments>
auto call(const char* name, const Arguments&... arguments) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<Signature>()
      .call(arguments...);
}

struct Experts {
  at::Tensor up;
  at::Tensor down;
  const std::string& product;
  const std::string& activation;
  bool gated;
  const std::string& units_group;
};

// As the products take them.
at::Tensor turned(const at::Tensor& matrices, bool transposed) {
  return transposed ? matrices.mT() : matrices;
}

// Where experts are, and who exchanges rows.
struct Holders {
  std::int64_t num_experts;
  at::IntArrayRef first_experts;
  const std::string& group;
};

at::Tensor activate(const std::string& name, const at::Tensor& x) {
  if (name == "silu") return at::silu(x);
  if (name == "relu") return at::relu(x);
  if (name == "gelu") return at::gelu(x, "none");
  TORCH_CHECK_VALUE(name == "gelu_tanh", "routed_experts: activation '", name,
                    "' is none of silu, relu, gelu and gelu_tanh");
  return at::gelu(x, "tanh");
}

at::Tensor call_product(const std::string& product, const at::Tensor& rows,
                        const at::Tensor& matrices, const at::Tensor& ends) {
  if (product == "aten::_grouped_mm") {
    return at::_grouped_mm(rows, matrices, ends);
  }
  using Signature =
      at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&);
  return call<Signature>(product.c_str(), rows, matrices, ends);
}

// Kernels need not take no rows at all: then there is one that no expert has.
// All ranks call the same operator, so that autograd saves the same everywhere:
// what is saved may be made again in backward by collectives.
at::Tensor multiply(const std::string& product, const at::Tensor& rows,
                    const at::Tensor& matrices, const at::Tensor& ends) {
  if (rows.size(0) > 0) return call_product(product, rows, matrices, ends);
  const at::Tensor row = at::zeros({1, rows.size(1)}, rows.options());
  return call_product(product, at::cat({rows, row}), matrices, ends)
      .narrow(0, 0, 0);
}

at::Tensor gate(const Experts& experts, const at::Tensor& hidden) {
  if (!experts.gated) return activate(experts.activation, hidden);
  if (experts.units_group.empty()) {
    const auto halves = hidden.chunk(2, -1);
    return activate(experts.activation, halves[0]) * halves[1];
  }
  const at::Tensor pieces =
      hidden.view({hidden.size(0), 2, hidden.size(1) / 2}).transpose(0, 1);
  using Signature = at::Tensor(const at::Tensor&, const std::string&, bool);
  const auto halves =
      call<Signature>("tensoropt::exchange_gates", pieces.contiguous(),
                      experts.units_group, true)
          .unbind(0);
  return activate(experts.activation, halves[0]) * halves[1];
}

// Rows sorted by expert; those of expert i end before ends[i].
at::Tensor run_experts(const Experts& experts, const at::Tensor& rows,
                       const at::Tensor& ends) {
  const at::Tensor given = rows.to(experts.up.scalar_type());
  const at::Tensor hidden =
      gate(experts, multiply(experts.product, given, experts.up, ends));
  return multiply(experts.product, hidden.to(experts.down.scalar_type()),
                  experts.down, ends);
}

at::Tensor pick(const at::Tensor& rows, const at::Tensor& positions) {
  return at::index(rows, c10::List<std::optional<at::Tensor>>({positions}));
}

// `rows` at these positions, zeros elsewhere.
at::Tensor put(const at::Tensor& rows, const at::Tensor& positions,
               std::int64_t count) {
  Sizes shape = rows.sizes().vec();
  shape[0] = count;
  return at::index_put(at::zeros(shape, rows.options()),
                       c10::List<std::optional<at::Tensor>>({positions}), rows);
}

std::tuple<at::Tensor, at::Tensor> route(const at::Tensor& experts,
                                         std::int64_t num_experts) {
  using Signature =
      std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, std::int64_t);
  return call<Signature>("tensoropt::_route", experts, num_experts);
}

// How many rows go where.
struct Counts {
  Sizes starts;    // by peer
  Sizes sends;     // by peer
  Sizes received;  // by peer and expert of this rank
  Sizes receives;  // by peer

  Counts(const at::Tensor& ends, const Holders& holders,
         std::int64_t num_experts, std::int64_t num_rows) {
    using Signature = Sizes(const at::Tensor&, at::IntArrayRef, std::int64_t,
                            std::int64_t, const std::string&);
    const Sizes all = call<Signature>("tensoropt::_routed_counts", ends,
                                      holders.first_experts, num_experts,
                                      num_rows, holders.group);
    const auto peers =
        static_cast<std::ptrdiff_t>(holders.first_experts.size());
    starts.assign(all.begin(), all.begin() + peers);
    sends.assign(all.begin() + peers, all.begin() + 2 * peers);
    received.assign(all.begin() + 2 * peers, all.end());
    for (auto first = received.begin(); first != received.end();
         first += num_experts) {
      receives.push_back(
          std::accumulate(first, first + num_experts, std::int64_t{0}));
    }
  }
};

// `rows` lie by peer; the results of its experts, in the same order. They are
// sent as the experts take them.
at::Tensor exchange(const Experts& experts, const at::Tensor& rows,
                    const Counts& counts, const std::string& group) {
  using Exchange = at::Tensor(const at::Tensor&, at::IntArrayRef,
                              at::IntArrayRef, const std::string&);
  using Order = std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, at::IntArrayRef, std::int64_t);
  constexpr const char* kExchange = "tensoropt::exchange_rows";
  const at::Tensor received =
      call<Exchange>(kExchange, rows.to(experts.up.scalar_type()), counts.sends,
                     counts.receives, group);
  const auto [order, ends] =
      call<Order>("tensoropt::_order_by_expert", received, counts.received,
                  experts.up.size(0));
  const at::Tensor results = run_experts(experts, pick(received, order), ends);
  return call<Exchange>(kExchange, put(results, order, received.size(0)),
                        counts.receives, counts.sends, group);
}

void check(const at::Tensor& x, const at::Tensor& chosen,
           const at::Tensor& weights, const Experts& experts) {
  TORCH_CHECK_VALUE(x.dim() == 2 && chosen.dim() == 2 &&
                        chosen.sizes() == weights.sizes() &&
                        chosen.size(0) == x.size(0),
                    "routed_experts: x has to be [n, d], experts and weights "
                    "[n, k], got ",
                    x.sizes(), ", ", chosen.sizes(), " and ", weights.sizes());
  const at::Tensor& up = experts.up;
  const at::Tensor& down = experts.down;
  const std::int64_t columns = experts.gated ? 2 : 1;
  TORCH_CHECK_VALUE(up.dim() == 3 && down.dim() == 3 &&
                        up.size(0) == down.size(0) && up.size(1) == x.size(1) &&
                        up.size(2) == columns * down.size(1),
                    "routed_experts: up has to be [e, d, ", columns,
                    " f] and down [e, f, d], got ", up.sizes(), " and ",
                    down.sizes(), " for x ", x.sizes());
}

at::Tensor run(const at::Tensor& x, const at::Tensor& chosen,
               const at::Tensor& weights, const Experts& experts,
               const Holders& holders) {
  check(x, chosen, weights, experts);
  const std::int64_t count = chosen.numel();
  const std::int64_t each = chosen.size(1);
  const std::int64_t own = experts.up.size(0);
  auto [order, ends] = route(chosen, holders.num_experts);
  const auto rows = [&] { return pick(x, order.floor_divide(each)); };
  at::Tensor results;
  if (holders.group.empty() && own == holders.num_experts) {
    results = run_experts(experts, rows(), ends);
  } else {
    const Counts counts(ends, holders, own, count);
    std::vector<at::Tensor> parts;
    for (std::size_t i = 0; i < counts.sends.size(); ++i) {
      parts.push_back(order.narrow(0, counts.starts[i], counts.sends[i]));
    }
    order = at::cat(parts);
    if (holders.group.empty()) {
      ends = ends.narrow(0, holders.first_experts[0], own) - counts.starts[0];
      results = run_experts(experts, rows(), ends);
    } else {
      results = exchange(experts, rows(), counts, holders.group);
    }
  }
  results = results * pick(weights.flatten(), order).unsqueeze(-1);
  return put(results, order, count)
      .view({x.size(0), each, results.size(1)})
      .sum(1);
}

at::Tensor routed_experts(const at::Tensor& x, const at::Tensor& experts,
                          const at::Tensor& weights, const at::Tensor& up,
                          const at::Tensor& down, const std::string& product,
                          const std::string& activation, bool gated,
                          bool transposed) {
  const std::string none;
  const std::int64_t first = 0;
  return run(x, experts, weights,
             {turned(up, transposed), turned(down, transposed), product,
              activation, gated, none},
             {up.size(0), first, none});
}

at::Tensor routed_experts_shard(
    const at::Tensor& x, const at::Tensor& experts, const at::Tensor& weights,
    const at::Tensor& up, const at::Tensor& down, const std::string& product,
    const std::string& activation, bool gated, bool transposed,
    std::int64_t num_experts, at::IntArrayRef first_experts,
    const std::string& exchange_group, const std::string& units_group) {
  TORCH_CHECK_VALUE(!first_experts.empty() && first_experts.front() >= 0 &&
                        first_experts.back() + up.size(0) <= num_experts,
                    "routed_experts_shard: ", up.size(0),
                    " experts from each of ", first_experts,
                    " on are not among ", num_experts);
  return run(x, experts, weights,
             {turned(up, transposed), turned(down, transposed), product,
              activation, gated, units_group},
             {num_experts, first_experts, exchange_group});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "routed_experts(Tensor x, Tensor experts, Tensor weights, Tensor up, "
      "Tensor down, str product, str activation, bool gated, bool transposed) "
      "-> Tensor",
      routed_experts);
  library.def(
      "routed_experts_shard(Tensor x, Tensor experts, Tensor weights, "
      "Tensor up, Tensor down, str product, str activation, bool gated, "
      "bool transposed, int num_experts, int[] first_experts, "
      "str exchange_group, str units_group) -> Tensor",
      routed_experts_shard);
}

}  // namespace tensoropt::routed_experts_op
