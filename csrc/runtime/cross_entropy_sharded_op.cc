// Losses whose positions (batch, sequence) are split over ranks:
//
//   tensoropt::cross_entropy_sharded(logits, target, weight, reduction,
//                                    ignore_index, label_smoothing,
//                                    count_group)
//   tensoropt::nll_loss_sharded(log_probs, target, weight, ignore_index,
//                               count_group)
//
// Ranks may have different numbers of valid targets, so sums and numbers of all
// ranks of `count_group` (or the weights of their targets if classes have one)
// make a mean, on every rank that of one process. A sum is that of the rank's
// own positions (the result is Partial). reduction: 1 mean, 2 sum. Without
// valid targets a mean is nan, as in PyTorch. Autograd sees the calls inside.

#include <torch/library.h>

#include <optional>

#include "runtime/global_mean.h"

namespace tensoropt::cross_entropy_sharded_op {

namespace {

using Weight = std::optional<at::Tensor>;

// The sums of all ranks divided by what belongs to all targets.
at::Tensor mean_of(const at::Tensor& sum, const at::Tensor& target,
                   const Weight& weight, std::int64_t ignore_index,
                   const std::string& count_group) {
  return mean_over_ranks(sum, valid_divisor(target, weight, ignore_index),
                         count_group);
}

at::Tensor cross_entropy_sharded(const at::Tensor& logits,
                                 const at::Tensor& target, const Weight& weight,
                                 std::int64_t reduction,
                                 std::int64_t ignore_index,
                                 double label_smoothing,
                                 const std::string& count_group) {
  TORCH_CHECK_VALUE(
      reduction == at::Reduction::Mean || reduction == at::Reduction::Sum,
      "cross_entropy_sharded: reduction must be 1 (mean) or 2 (sum), got ",
      reduction);
  TORCH_CHECK_VALUE(!target.is_floating_point(),
                    "cross_entropy_sharded: targets must be class indices");
  const at::Tensor sum =
      at::cross_entropy_loss(logits, target, weight, at::Reduction::Sum,
                             ignore_index, label_smoothing);
  if (reduction == at::Reduction::Sum) return sum;
  return mean_of(sum, target, weight, ignore_index, count_group);
}

at::Tensor nll_loss_sharded(const at::Tensor& log_probs,
                            const at::Tensor& target, const Weight& weight,
                            std::int64_t ignore_index,
                            const std::string& count_group) {
  const at::Tensor sum = at::nll_loss_nd(log_probs, target, weight,
                                         at::Reduction::Sum, ignore_index);
  return mean_of(sum, target, weight, ignore_index, count_group);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "cross_entropy_sharded(Tensor logits, Tensor target, Tensor? weight, "
      "int reduction, int ignore_index, float label_smoothing, "
      "str count_group) -> Tensor",
      cross_entropy_sharded);
  library.def(
      "nll_loss_sharded(Tensor log_probs, Tensor target, Tensor? weight, "
      "int ignore_index, str count_group) -> Tensor",
      nll_loss_sharded);
}

}  // namespace tensoropt::cross_entropy_sharded_op
