// tensoropt::cross_entropy_vocab(logits, target, reduction, ignore_index,
//                                label_smoothing, num_classes, offset,
//                                vocab_group, count_group)
//
// Cross entropy of logits [n, classes, ...] whose `num_classes` classes are
// split over the ranks of `vocab_group`: this rank holds those from `offset`
// on. Maxima and sums of exponentials are reduced, logits never gathered
// (Megatron-LM). The positions may be split over `count_group` as in
// cross_entropy_sharded. The result is equal on all ranks of vocab_group and
// Partial over count_group.
//
// Where backward is differentiated it comes from the same loss, computed again.
//
// Saved for backward: the logits themselves (where dims follow the classes, a
// copy that has these last) and one number per position. With smoothing s and c
// classes the gradient is (softmax - (1 - s) * one_hot(target) - s / c) /
// count, from these. bfloat16 and float16 are computed in float32.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "runtime/collectives.h"
#include "runtime/compute_type.h"
#include "runtime/global_mean.h"
#include "runtime/second_derivatives.h"

namespace tensoropt::cross_entropy_vocab_op {

namespace {

using torch::autograd::AutogradContext;
// The loss, log(sum(exp(logits))) per position, and the divisor.
using VocabLoss = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Where targets lie in this rank's classes.
struct LocalTarget {
  at::Tensor column;  // [n, 1]; 0 where outside
  at::Tensor inside;  // [n, 1]
};

LocalTarget local_target(const at::Tensor& target, std::int64_t offset,
                         std::int64_t num_classes) {
  at::Tensor column = (target - offset).unsqueeze(1);
  const at::Tensor inside = (column >= 0).logical_and_(column < num_classes);
  return {column.masked_fill_(inside.logical_not(), 0), inside};
}

void check_operands(const at::Tensor& logits, const at::Tensor& target,
                    std::int64_t reduction) {
  TORCH_CHECK_VALUE(logits.dim() >= 2 && target.dim() == logits.dim() - 1 &&
                        logits.size(0) == target.size(0) &&
                        logits.sizes().slice(2) == target.sizes().slice(1),
                    "cross_entropy_vocab: logits have to be [n, classes, ...] "
                    "and targets [n, ...], got ",
                    logits.sizes(), " and ", target.sizes());
  TORCH_CHECK_VALUE(
      reduction == at::Reduction::Mean || reduction == at::Reduction::Sum,
      "cross_entropy_vocab: reduction must be 1 (mean) or 2 (sum), got ",
      reduction);
}

// Of logits [n, classes] and targets [n].
VocabLoss forward_kernel(const at::Tensor& logits, const at::Tensor& target,
                         std::int64_t reduction, std::int64_t ignore_index,
                         double smoothing, std::int64_t num_classes,
                         std::int64_t offset, const std::string& vocab_group,
                         const std::string& count_group) {
  const Group group = find_group(vocab_group);
  const at::Tensor x = logits.to(compute_type(logits));
  at::Tensor max = x.amax(1, /*keepdim=*/true);
  all_reduce(max, group, c10d::ReduceOp::MAX);
  const LocalTarget local = local_target(target, offset, x.size(1));
  const at::Tensor at_target =
      x.gather(1, local.column).masked_fill_(local.inside.logical_not(), 0);
  std::vector<at::Tensor> parts{(x - max).exp_().sum(1), at_target.squeeze(1)};
  if (smoothing > 0) parts.push_back(x.sum(1));
  at::Tensor sums = at::stack(parts);
  all_reduce(sums, group);
  const at::Tensor log_sum = sums[0].log().add_(max.squeeze(1));
  at::Tensor losses = log_sum - (1 - smoothing) * sums[1];
  if (smoothing > 0) {
    losses.sub_(sums[2], smoothing / static_cast<double>(num_classes));
  }
  losses.masked_fill_(target.eq(ignore_index), 0);
  const at::Tensor sum = losses.sum();
  if (reduction == at::Reduction::Sum) {
    return {sum.to(logits.scalar_type()), log_sum,
            at::ones({}, target.options().dtype(at::kDouble))};
  }
  const auto [mean, divisor] =
      global_mean(sum, valid_divisor(target, {}, ignore_index), count_group);
  return {mean.to(logits.scalar_type()), log_sum, divisor};
}

VocabLoss forward_meta(const at::Tensor& logits, const at::Tensor& /*target*/,
                       std::int64_t /*reduction*/,
                       std::int64_t /*ignore_index*/, double /*smoothing*/,
                       std::int64_t /*num_classes*/, std::int64_t /*offset*/,
                       const std::string& /*vocab_group*/,
                       const std::string& /*count_group*/) {
  const auto options = logits.options();
  return {at::empty({}, options),
          at::empty({logits.size(0)}, options.dtype(compute_type(logits))),
          at::empty({}, options.dtype(at::kDouble))};
}

struct Options {
  std::int64_t reduction;
  std::int64_t ignore_index;
  double smoothing;
  std::int64_t num_classes;
  std::int64_t offset;
};

VocabLoss call_forward(const at::Tensor& logits, const at::Tensor& target,
                       const Options& options, const std::string& vocab_group,
                       const std::string& count_group) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("tensoropt::_cross_entropy_vocab", "")
          .typed<decltype(forward_kernel)>();
  return op.call(logits, target, options.reduction, options.ignore_index,
                 options.smoothing, options.num_classes, options.offset,
                 vocab_group, count_group);
}

// (softmax - (1 - smoothing) * one_hot - uniform) * scale, with `scale` [n, 1].
at::Tensor logits_gradient(const at::Tensor& logits, const at::Tensor& log_sum,
                           const LocalTarget& local, const at::Tensor& scale,
                           double smoothing, double uniform) {
  at::Tensor result = logits.to(compute_type(logits)) - log_sum.unsqueeze(1);
  result.exp_().scatter_add_(
      1, local.column,
      local.inside.to(result.scalar_type()).mul_(smoothing - 1));
  if (uniform != 0) result.sub_(uniform);
  return result.mul_(scale).to(logits.scalar_type());
}

// As forward_kernel, by operators that can be differentiated.
at::Tensor loss_again(const at::Tensor& logits, const at::Tensor& target,
                      const Options& options, const std::string& vocab_group,
                      const std::string& count_group) {
  const at::Tensor x = logits.to(compute_type(logits));
  at::Tensor max = x.detach().amax(1, /*keepdim=*/true);
  all_reduce(max, find_group(vocab_group), c10d::ReduceOp::MAX);
  const LocalTarget local = local_target(target, options.offset, x.size(1));
  const at::Tensor at_target =
      x.gather(1, local.column).masked_fill(local.inside.logical_not(), 0);
  std::vector<at::Tensor> parts{(x - max).exp().sum(1), at_target.squeeze(1)};
  if (options.smoothing > 0) parts.push_back(x.sum(1));
  const at::Tensor sums =
      summed_again(at::stack(parts), vocab_group, GradientOn::kAll);
  at::Tensor losses =
      sums[0].log() + max.squeeze(1) - (1 - options.smoothing) * sums[1];
  if (options.smoothing > 0) {
    const auto num_classes = static_cast<double>(options.num_classes);
    losses = losses - options.smoothing / num_classes * sums[2];
  }
  const at::Tensor sum =
      losses.masked_fill(target.eq(options.ignore_index), 0).sum();
  if (options.reduction == at::Reduction::Sum) {
    return sum.to(logits.scalar_type());
  }
  return mean_over_ranks(sum, valid_divisor(target, {}, options.ignore_index),
                         count_group)
      .to(logits.scalar_type());
}

struct CrossEntropyVocab : torch::autograd::Function<CrossEntropyVocab> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& target, const Options& options,
                            const std::string& vocab_group,
                            const std::string& count_group) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [loss, log_sum, divisor] =
        call_forward(logits, target, options, vocab_group, count_group);
    context->save_for_backward({logits, target, log_sum, divisor});
    context->saved_data["reduction"] = options.reduction;
    context->saved_data["ignore_index"] = options.ignore_index;
    context->saved_data["offset"] = options.offset;
    context->saved_data["smoothing"] = options.smoothing;
    context->saved_data["num_classes"] = options.num_classes;
    context->saved_data["vocab_group"] = vocab_group;
    context->saved_data["count_group"] = count_group;
    return loss;
  }

  static torch::autograd::variable_list backward(
      AutogradContext* context, torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& logits = saved[0];
    const at::Tensor& target = saved[1];
    if (is_differentiated_again()) {
      const auto compute = [&](const torch::autograd::variable_list& views) {
        return loss_again(views[0], target, options_of(context),
                          context->saved_data["vocab_group"].toStringRef(),
                          context->saved_data["count_group"].toStringRef());
      };
      return {
          gradients_again({logits}, gradients[0], compute)[0], {}, {}, {}, {}};
    }
    const at::AutoDispatchBelowADInplaceOrView guard;
    const LocalTarget local = local_target(
        target, context->saved_data["offset"].toInt(), logits.size(1));
    const at::Tensor valid =
        target.ne(context->saved_data["ignore_index"].toInt());
    const at::Tensor scale =
        ((gradients[0] / saved[3]).to(compute_type(logits)) * valid)
            .unsqueeze(1);
    const double smoothing = context->saved_data["smoothing"].toDouble();
    const double uniform =
        smoothing /
        static_cast<double>(context->saved_data["num_classes"].toInt());
    return {logits_gradient(logits, saved[2], local, scale, smoothing, uniform),
            {},
            {},
            {},
            {}};
  }

 private:
  static Options options_of(AutogradContext* context) {
    auto& saved = context->saved_data;
    return {saved["reduction"].toInt(), saved["ignore_index"].toInt(),
            saved["smoothing"].toDouble(), saved["num_classes"].toInt(),
            saved["offset"].toInt()};
  }
};

at::Tensor cross_entropy_vocab(const at::Tensor& logits,
                               const at::Tensor& target, std::int64_t reduction,
                               std::int64_t ignore_index, double smoothing,
                               std::int64_t num_classes, std::int64_t offset,
                               const std::string& vocab_group,
                               const std::string& count_group) {
  check_operands(logits, target, reduction);
  TORCH_CHECK_VALUE(num_classes >= offset + logits.size(1),
                    "cross_entropy_vocab: ", num_classes,
                    " classes in all, but this rank has ", logits.size(1),
                    " from ", offset, " on");
  const at::Tensor rows =
      logits.dim() == 2 ? logits : logits.movedim(1, -1).flatten(0, -2);
  return CrossEntropyVocab::apply(
      rows, target.flatten(),
      Options{reduction, ignore_index, smoothing, num_classes, offset},
      vocab_group, count_group);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "cross_entropy_vocab(Tensor logits, Tensor target, int reduction, "
      "int ignore_index, float label_smoothing, int num_classes, int offset, "
      "str vocab_group, str count_group) -> Tensor",
      cross_entropy_vocab);
  library.def(
      "_cross_entropy_vocab(Tensor logits, Tensor target, int reduction, "
      "int ignore_index, float label_smoothing, int num_classes, int offset, "
      "str vocab_group, str count_group) -> (Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("_cross_entropy_vocab", forward_kernel);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("_cross_entropy_vocab", forward_meta);
}

}  // namespace tensoropt::cross_entropy_vocab_op
