// tensoropt::batch_norm_groups(input, weight, bias, running_mean, running_var,
//                              momentum, eps, groups, channel_begin)
//
// Batch normalisation in training of [n, c, ...], as ATen's, of which each of
// `groups` parts of the rows (as torch.chunk cuts them) is normalised by its
// own statistics, as the shares of ranks under DistributedDataParallel are
// ("ghost batch normalisation": Hoffer, Hubara, Soudry, 2017). The running
// statistics are moved towards the mean of those of the groups, in place; of
// them the channels from `channel_begin` on are meant.

#include <torch/library.h>

#include <optional>
#include <vector>

namespace tensoropt::batch_norm_groups_op {

namespace {

using Optional = std::optional<at::Tensor>;

at::Tensor normalised(const at::Tensor& input, const Optional& weight,
                      const Optional& bias, const Optional& running_mean,
                      const Optional& running_var, double momentum,
                      double eps) {
  return at::batch_norm(input, weight, bias, running_mean, running_var,
                        /*training=*/true, momentum, eps,
                        at::globalContext().userEnabledCuDNN());
}

// Without a new version: autograd has saved it, though it needs no value.
void move_towards(const at::Tensor& running, const at::Tensor& statistics,
                  double momentum) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  running.mul_(1 - momentum).add_(statistics, momentum);
}

at::Tensor batch_norm_groups(const at::Tensor& input, const Optional& weight,
                             const Optional& bias, const Optional& running_mean,
                             const Optional& running_var, double momentum,
                             double eps, std::int64_t groups,
                             std::int64_t channel_begin) {
  TORCH_CHECK(groups >= 1, "batch_norm_groups: groups is ", groups,
              "; there must be 1 at least");
  const bool tracked = running_mean.has_value();
  const auto own = [&](const Optional& running) {
    if (!tracked || running->size(0) == input.size(1)) return running;
    return Optional(running->narrow(0, channel_begin, input.size(1)));
  };
  const Optional mean = own(running_mean);
  const Optional variance = own(running_var);
  if (groups == 1) {
    return normalised(input, weight, bias, mean, variance, momentum, eps);
  }
  std::vector<at::Tensor> parts = input.chunk(groups, 0);
  const double share = 1.0 / static_cast<double>(parts.size());
  Optional mean_of_groups;
  Optional variance_of_groups;
  for (at::Tensor& part : parts) {
    Optional part_mean;
    Optional part_variance;
    if (tracked) {
      part_mean = at::zeros_like(*mean);
      part_variance = at::zeros_like(*variance);
    }
    part = normalised(part, weight, bias, part_mean, part_variance,
                      /*momentum=*/1, eps);
    if (!tracked) continue;
    const auto add = [share](Optional& sum, const at::Tensor& next) {
      sum = sum.has_value() ? sum->add(next, share) : next.mul(share);
    };
    add(mean_of_groups, *part_mean);
    add(variance_of_groups, *part_variance);
  }
  if (tracked) {
    move_towards(*mean, *mean_of_groups, momentum);
    move_towards(*variance, *variance_of_groups, momentum);
  }
  return at::cat(parts, 0);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "batch_norm_groups(Tensor input, Tensor? weight, Tensor? bias, "
      "Tensor(a!)? running_mean, Tensor(b!)? running_var, float momentum, "
      "float eps, int groups, int channel_begin=0) -> Tensor");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeImplicitAutograd, library) {
  library.impl("batch_norm_groups", batch_norm_groups);
}

}  // namespace tensoropt::batch_norm_groups_op
