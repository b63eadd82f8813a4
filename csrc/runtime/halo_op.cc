// tensoropt::halo_exchange(x, dim, low, high, fill, group)
//
// `x` is this rank's block of a tensor that is split along `dim` over the
// group, blocks in rank order. The result is the block with the last `low`
// entries of the block before it and the first `high` ones of the block after
// it, `fill` where there is none: what a window that reaches over the border
// sees. With `high` < 0 so many entries at the end are left out.
//
// In backward the gradients of borrowed entries go back to their owners; where
// that is differentiated, they are borrowed again.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "runtime/collectives.h"
#include "runtime/second_derivatives.h"

namespace tensoropt::halo_op {

namespace {

using torch::autograd::AutogradContext;

struct Halo {
  std::int64_t dim;
  std::int64_t low;
  std::int64_t high;
};

struct Borders {
  at::Tensor before;  // of the previous rank; undefined if there is none
  at::Tensor after;   // of the next one
};

void check(const at::Tensor& x, const Halo& halo) {
  TORCH_CHECK_VALUE(0 <= halo.dim && halo.dim < x.dim(), "halo_exchange: dim ",
                    halo.dim, " of a tensor of ", x.dim(), " dims");
  const std::int64_t size = x.size(halo.dim);
  TORCH_CHECK_VALUE(0 <= halo.low && halo.low <= size && -size <= halo.high &&
                        halo.high <= size,
                    "halo_exchange: low ", halo.low, " and high ", halo.high,
                    " reach beyond the neighbours, which have ", size,
                    " entries");
}

// `first` goes to the previous rank, `last` to the next one. All ranks give as
// many entries of dim 0.
Borders exchange(const at::Tensor& first, const at::Tensor& last,
                 const Group& group) {
  const int rank = group->getRank();
  const int size = group->getSize();
  std::vector<std::int64_t> sends(size, 0);
  std::vector<std::int64_t> receives(size, 0);
  std::vector<at::Tensor> entries;
  if (rank > 0) {
    sends[rank - 1] = first.size(0);
    receives[rank - 1] = last.size(0);
    entries.push_back(first);
  }
  if (rank + 1 < size) {
    sends[rank + 1] = last.size(0);
    receives[rank + 1] = first.size(0);
    entries.push_back(last);
  }
  if (entries.empty()) return {};
  const at::Tensor received =
      all_to_all(at::cat(entries).contiguous(), sends, receives, group);
  Borders borders;
  const std::int64_t before = rank > 0 ? receives[rank - 1] : 0;
  if (rank > 0) borders.before = received.narrow(0, 0, before);
  if (rank + 1 < size) {
    borders.after = received.narrow(0, before, receives[rank + 1]);
  }
  return borders;
}

at::Tensor filled(const at::Tensor& like, std::int64_t size, double fill) {
  std::vector<std::int64_t> shape = like.sizes().vec();
  shape[0] = size;
  return at::full(shape, fill, like.options());
}

at::Tensor halo_exchange(const at::Tensor& x, std::int64_t dim,
                         std::int64_t low, std::int64_t high, double fill,
                         const std::string& group) {
  const Halo halo{dim, low, high};
  check(x, halo);
  const at::Tensor rows = x.transpose(0, dim);
  const std::int64_t size = rows.size(0);
  const std::int64_t lent = std::max<std::int64_t>(high, 0);
  const Borders borders =
      exchange(rows.narrow(0, 0, lent), rows.narrow(0, size - low, low),
               find_group(group));
  const at::Tensor before =
      borders.before.defined() ? borders.before : filled(rows, low, fill);
  const at::Tensor after =
      borders.after.defined() ? borders.after : filled(rows, lent, fill);
  const at::Tensor own =
      rows.narrow(0, 0, size + std::min<std::int64_t>(high, 0));
  return at::cat({before, own, after}).transpose(0, dim).contiguous();
}

at::Tensor return_halo(const at::Tensor& gradient, const Halo& halo,
                       const Group& group) {
  const at::Tensor rows = gradient.transpose(0, halo.dim);
  const std::int64_t lent = std::max<std::int64_t>(halo.high, 0);
  const std::int64_t own = rows.size(0) - halo.low - lent;
  const Borders borders = exchange(rows.narrow(0, 0, halo.low),
                                   rows.narrow(0, halo.low + own, lent), group);
  const std::int64_t unused = std::max<std::int64_t>(-halo.high, 0);
  const at::Tensor kept = rows.narrow(0, halo.low, own);
  at::Tensor result = unused == 0 ? kept.clone(at::MemoryFormat::Contiguous)
                                  : at::cat({kept, filled(rows, unused, 0)});
  if (borders.before.defined()) result.narrow(0, 0, lent).add_(borders.before);
  if (borders.after.defined()) {
    result.narrow(0, result.size(0) - halo.low, halo.low).add_(borders.after);
  }
  return result.transpose(0, halo.dim).contiguous();
}

using Exchange = at::Tensor(const at::Tensor&, std::int64_t, std::int64_t,
                            std::int64_t, double, const std::string&);

const c10::TypedOperatorHandle<Exchange>& exchange_op() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tensoropt::halo_exchange", "")
                             .typed<Exchange>();
  return op;
}

struct ReturnHalo : torch::autograd::Function<ReturnHalo> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& gradient, const Halo& halo,
                            const std::string& group) {
    context->saved_data["dim"] = halo.dim;
    context->saved_data["low"] = halo.low;
    context->saved_data["high"] = halo.high;
    context->saved_data["group"] = group;
    return return_halo(gradient, halo, find_group(group));
  }

  static torch::autograd::variable_list backward(
      AutogradContext* context, torch::autograd::variable_list gradients) {
    auto& saved = context->saved_data;
    return {exchange_op().call(gradients[0], saved["dim"].toInt(),
                               saved["low"].toInt(), saved["high"].toInt(),
                               /*fill=*/0, saved["group"].toStringRef()),
            {},
            {}};
  }
};

struct HaloExchange : torch::autograd::Function<HaloExchange> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            std::int64_t dim, std::int64_t low,
                            std::int64_t high, double fill,
                            const std::string& group) {
    context->saved_data["dim"] = dim;
    context->saved_data["low"] = low;
    context->saved_data["high"] = high;
    context->saved_data["group"] = group;
    const at::AutoDispatchBelowADInplaceOrView guard;
    return exchange_op().call(x, dim, low, high, fill, group);
  }

  static torch::autograd::variable_list backward(
      AutogradContext* context, torch::autograd::variable_list gradients) {
    const Halo halo{context->saved_data["dim"].toInt(),
                    context->saved_data["low"].toInt(),
                    context->saved_data["high"].toInt()};
    const std::string& group = context->saved_data["group"].toStringRef();
    const at::Tensor gradient =
        is_differentiated_again()
            ? ReturnHalo::apply(gradients[0], halo, group)
            : return_halo(gradients[0], halo, find_group(group));
    return {gradient, {}, {}, {}, {}, {}};
  }
};

at::Tensor halo_exchange_autograd(const at::Tensor& x, std::int64_t dim,
                                  std::int64_t low, std::int64_t high,
                                  double fill, const std::string& group) {
  return HaloExchange::apply(x, dim, low, high, fill, group);
}

at::Tensor halo_exchange_meta(const at::Tensor& x, std::int64_t dim,
                              std::int64_t low, std::int64_t high,
                              double /*fill*/, const std::string& /*group*/) {
  check(x, {dim, low, high});
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape[dim] += low + high;
  return at::empty(shape, x.options());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "halo_exchange(Tensor x, int dim, int low, int high, float fill, "
      "str group) -> Tensor");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("halo_exchange", halo_exchange);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("halo_exchange", halo_exchange_meta);
}
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("halo_exchange", halo_exchange_autograd);
}

}  // namespace tensoropt::halo_op
