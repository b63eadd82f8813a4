#include "runtime/gate_exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tensoropt {

namespace {

// The entries of dim 0 in this order. No index tensor: that would be a copy to
// the device in every step.
at::Tensor permuted(const at::Tensor& entries,
                    const std::vector<std::int64_t>& order) {
  if (std::is_sorted(order.begin(), order.end())) return entries.contiguous();
  std::vector<at::Tensor> parts;
  for (const std::int64_t entry : order) parts.push_back(entries[entry]);
  return at::stack(parts);
}

}  // namespace

GateExchange::GateExchange(Group group, std::int64_t gates)
    : group_(std::move(group)),
      by_owner_(gates),
      in_owners_(gates),
      owners_(group_->getSize(), 0),
      holders_(group_->getSize(), 0) {
  const std::int64_t size = group_->getSize();
  const std::int64_t rank = group_->getRank();
  const auto owner = [&](std::int64_t piece) {
    return (gates * rank + piece) % size;
  };
  std::iota(by_owner_.begin(), by_owner_.end(), 0);
  std::stable_sort(
      by_owner_.begin(), by_owner_.end(),
      [&](std::int64_t a, std::int64_t b) { return owner(a) < owner(b); });
  for (std::int64_t i = 0; i < gates; ++i) {
    in_owners_[by_owner_[i]] = i;
    ++owners_[owner(i)];
    ++holders_[(size * i + rank) / gates];
  }
}

at::Tensor GateExchange::to_units(const at::Tensor& rows) const {
  return all_to_all(permuted(rows, by_owner_), owners_, holders_, group_);
}

at::Tensor GateExchange::to_rows(const at::Tensor& units) const {
  return permuted(all_to_all(units.contiguous(), holders_, owners_, group_),
                  in_owners_);
}

}  // namespace tensoropt
