// tensoropt::batch_norm_groups(input, weight, bias, running_mean, running_var,
//                              momentum, eps, groups, channel_begin)
//
// Batch normalisation in training of [n, c, ...], as ATen's, of which each of
// `groups` parts of the rows (as torch.chunk cuts them) is normalised by its
// own statistics, as the shares of ranks under DistributedDataParallel are
// ("ghost batch normalisation": Hoffer, Hubara, Soudry, 2017). The running
// statistics are moved towards the mean of those of the groups, in place; of
// them the channels from `channel_begin` on are meant.
//
// tensoropt::BufferAverage()
// tensoropt::begin_average(buffers, average, begins, sizes, holders, group)
// tensoropt::end_average(buffers, average)
//
// Buffers [c] that each rank of the group has changed by itself, and only so
// many entries (`sizes`) from `begins` on, become the means of the ranks that
// have changed the same entries, of which there are `holders`. One collective,
// which is under way from begin to end.
// What ranks have moved towards statistics of their own has then been moved
// towards the mean of these.

#include <c10/util/irange.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "runtime/collectives.h"
#include "runtime/compute_type.h"

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
    return tracked ? Optional(running->narrow(0, channel_begin, input.size(1)))
                   : std::nullopt;
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

// What the rank has changed of each buffer, zeros elsewhere, divided by the
// number of ranks that have changed the same entries: one after the other.
at::Tensor own_shares(at::TensorList buffers, at::IntArrayRef begins,
                      at::IntArrayRef sizes, at::IntArrayRef holders) {
  auto type = compute_type(buffers.front());
  for (const at::Tensor& buffer : buffers) {
    type = at::promote_types(type, compute_type(buffer));
  }
  std::vector<at::Tensor> shares;
  for (const auto i : c10::irange(buffers.size())) {
    const at::Tensor buffer = buffers[i].to(type);
    if (sizes[i] == buffer.numel()) {
      shares.push_back(buffer);
      continue;
    }
    shares.push_back(at::zeros_like(buffer));
    shares.back()
        .narrow(0, begins[i], sizes[i])
        .copy_(buffer.narrow(0, begins[i], sizes[i]));
  }
  at::Tensor flat = at::cat(shares);
  const auto differs = [&](std::int64_t count) { return count != holders[0]; };
  if (std::none_of(holders.begin(), holders.end(), differs)) {
    return flat.div_(holders[0]);
  }
  std::int64_t begin = 0;
  for (const auto i : c10::irange(buffers.size())) {
    flat.narrow(0, begin, buffers[i].numel()).div_(holders[i]);
    begin += buffers[i].numel();
  }
  return flat;
}

// The exchange of one step.
class BufferAverage : public torch::CustomClassHolder {
 public:
  void begin(at::TensorList buffers, at::IntArrayRef begins,
             at::IntArrayRef sizes, at::IntArrayRef holders,
             const std::string& group) {
    started_ = start_all_reduce(own_shares(buffers, begins, sizes, holders),
                                find_group(group));
  }

  void end(at::TensorList buffers) {
    TORCH_CHECK(started_ || flat_.defined(),
                "end_average comes after begin_average");
    if (started_) flat_ = started_->wait();
    started_.reset();
    std::vector<std::int64_t> lengths;
    for (const at::Tensor& buffer : buffers) lengths.push_back(buffer.numel());
    at::_foreach_copy_(buffers, flat_.split_with_sizes(lengths));
  }

 private:
  std::optional<Started> started_;
  at::Tensor flat_;
};

using Average = c10::intrusive_ptr<BufferAverage>;

void begin_average(at::TensorList buffers, const Average& average,
                   at::IntArrayRef begins, at::IntArrayRef sizes,
                   at::IntArrayRef holders, const std::string& group) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  average->begin(buffers, begins, sizes, holders, group);
}

void end_average(at::TensorList buffers, const Average& average) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  average->end(buffers);
}

void begin_nothing(at::TensorList /*buffers*/, const Average& /*average*/,
                   at::IntArrayRef /*begins*/, at::IntArrayRef /*sizes*/,
                   at::IntArrayRef /*holders*/, const std::string& /*group*/) {}

void end_nothing(at::TensorList /*buffers*/, const Average& /*average*/) {}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "batch_norm_groups(Tensor input, Tensor? weight, Tensor? bias, "
      "Tensor(a!)? running_mean, Tensor(b!)? running_var, float momentum, "
      "float eps, int groups, int channel_begin=0) -> Tensor");
  library.class_<BufferAverage>("BufferAverage").def(torch::init<>());
  library.def(
      "begin_average(Tensor[] buffers, "
      "__torch__.torch.classes.tensoropt.BufferAverage average, int[] begins, "
      "int[] sizes, int[] holders, str group) -> ()");
  library.def(
      "end_average(Tensor(a!)[] buffers, "
      "__torch__.torch.classes.tensoropt.BufferAverage average) -> ()");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeImplicitAutograd, library) {
  library.impl("batch_norm_groups", batch_norm_groups);
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("begin_average", begin_average);
  library.impl("end_average", end_average);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("begin_average", begin_nothing);
  library.impl("end_average", end_nothing);
}

}  // namespace tensoropt::batch_norm_groups_op
