// tensoropt::batch_norm_sharded(input, weight, bias, running_mean, running_var,
//                               momentum, eps, channel_begin, samples,
//                               batch_group, channel_group)
//
// Batch normalisation in training of a share of the batch: `input` [n, c, ...]
// has n of the samples and c of the channels, `weight` and `bias` are of these
// channels. Mean and variance are those of the whole batch, from the means and
// variances of the ranks of `batch_group` (Chan et al., 1979; no digits of them
// are lost where means are large), which have so many `samples` in rank order,
// or, if that is empty, equal shares. The running
// statistics are of all channels, the blocks of the ranks of `channel_group`
// joined in rank order, and updated in place on every rank alike. Either group
// may be empty.
//
// Backward reduces two numbers per channel over batch_group; gradients of
// weight and bias are those of the share, Partial over batch_group. Saved:
// input, weight, two numbers per channel. bfloat16 and float16 are computed in
// float32. Whatever is as large as the input is computed by ATen's kernels of
// batch normalisation, each in one pass; what they reduce to numbers, by
//
// tensoropt::_batch_statistics(x) -> [2, c]
//     Mean and variance, without correction.
// tensoropt::_batch_gradient_sums(gradient, x, mean, inverse) -> [2, c]
//     Sums of the gradient, and of its product with the normalised input.
//
// whose meta kernels make nothing else, as simulations have to see them.

#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "runtime/collectives.h"
#include "runtime/compute_type.h"
#include "runtime/second_derivatives.h"

namespace tensoropt::batch_norm_op {

namespace {

using torch::autograd::AutogradContext;
using Optional = std::optional<at::Tensor>;
// The output; mean and 1 / deviation [c].
using Normalised = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// [c] as [1, c, 1, ...].
at::Tensor per_channel(const at::Tensor& numbers, const at::Tensor& input) {
  std::vector<std::int64_t> shape(input.dim(), 1);
  shape[1] = numbers.numel();
  return numbers.reshape(shape);
}

std::int64_t size_of(const std::string& group) {
  return group.empty() ? 1 : find_group(group)->getSize();
}

// Elements of a channel in the whole batch.
double global_count(const at::Tensor& input, at::IntArrayRef samples,
                    const std::string& batch_group) {
  const std::int64_t own = input.numel() / input.size(1);
  if (samples.empty()) return static_cast<double>(own * size_of(batch_group));
  return static_cast<double>(own / input.size(0) * c10::sum_integers(samples));
}

// The mean over ranks [r, ...], each of which counts as many samples as it has.
at::Tensor mean_of_ranks(const at::Tensor& parts, at::IntArrayRef samples) {
  if (samples.empty()) return parts.mean(0);
  const at::Tensor shares = at::tensor(samples, at::kDouble)
                                .div_(c10::sum_integers(samples))
                                .to(parts.options());
  return (parts * shares.unsqueeze(1)).sum(0);
}

at::Tensor batch_statistics(const at::Tensor& x) {
  const auto [mean, variance] =
      at::batch_norm_update_stats(x, {}, {}, /*momentum=*/0);
  return at::stack({mean, variance});
}

at::Tensor batch_gradient_sums(const at::Tensor& gradient, const at::Tensor& x,
                               const at::Tensor& mean,
                               const at::Tensor& inverse) {
  // The weight is of no use without a gradient of the input, but has to be
  // there on CUDA.
  const at::Tensor& weight = inverse;
  const auto [_, products, sums] = at::native_batch_norm_backward(
      gradient, x, weight, {}, {}, mean, inverse, /*train=*/true, /*eps=*/0,
      {false, true, true});
  return at::stack({sums, products});
}

at::Tensor batch_statistics_meta(const at::Tensor& x) {
  return at::empty({2, x.size(1)}, x.options());
}

at::Tensor batch_gradient_sums_meta(const at::Tensor& /*gradient*/,
                                    const at::Tensor& x,
                                    const at::Tensor& /*mean*/,
                                    const at::Tensor& /*inverse*/) {
  return batch_statistics_meta(x);
}

// [2, c]: mean and variance over the whole batch.
at::Tensor global_statistics(const at::Tensor& x, at::IntArrayRef samples,
                             const std::string& group) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("tensoropt::_batch_statistics", "")
          .typed<decltype(batch_statistics)>();
  const at::Tensor local = op.call(x);
  if (group.empty()) return local;
  const at::Tensor parts = all_gather(local, find_group(group));
  const at::Tensor means = parts.select(1, 0);
  const at::Tensor whole = mean_of_ranks(means, samples);
  const at::Tensor between = mean_of_ranks((means - whole).square_(), samples);
  const at::Tensor within = mean_of_ranks(parts.select(1, 1), samples);
  return at::stack({whole, within + between});
}

// [2, all]: joined over the ranks that have other channels, in equal parts
// where these divide.
at::Tensor of_all_channels(const at::Tensor& statistics, std::int64_t all,
                           std::int64_t begin, const std::string& group) {
  if (group.empty()) return statistics;
  if (all % size_of(group) == 0) {
    return all_gather(statistics, find_group(group)).transpose(0, 1).flatten(1);
  }
  at::Tensor result = at::zeros({2, all}, statistics.options());
  result.narrow(1, begin, statistics.size(1)).copy_(statistics);
  all_reduce(result, find_group(group));
  return result;
}

// (x - mean) / sqrt(variance + eps) * weight + bias, by channel.
at::Tensor normalise(const at::Tensor& x, const Optional& weight,
                     const Optional& bias, const at::Tensor& mean,
                     const at::Tensor& variance, double eps) {
  return std::get<0>(at::native_batch_norm(x, weight, bias, mean, variance,
                                           /*training=*/false, /*momentum=*/0,
                                           eps));
}

Optional in_type(const Optional& tensor, at::ScalarType type) {
  return tensor.has_value() ? Optional(tensor->to(type)) : std::nullopt;
}

// Moves running statistics towards those of this batch, with the unbiased
// variance.
void update_running(const Optional& mean, const Optional& variance,
                    const at::Tensor& statistics, double count,
                    double momentum) {
  mean->mul_(1 - momentum).add_(statistics[0], momentum);
  variance->mul_(1 - momentum)
      .add_(statistics[1] * (count / (count - 1)), momentum);
}

Normalised forward_kernel(const at::Tensor& input, const Optional& weight,
                          const Optional& bias, const Optional& running_mean,
                          const Optional& running_var, double momentum,
                          double eps, std::int64_t channel_begin,
                          at::IntArrayRef samples,
                          const std::string& batch_group,
                          const std::string& channel_group) {
  const at::Tensor x =
      input.to(compute_type(input)).contiguous(input.suggest_memory_format());
  const at::Tensor statistics = global_statistics(x, samples, batch_group);
  if (running_mean.has_value()) {
    update_running(running_mean, running_var,
                   of_all_channels(statistics, running_mean->numel(),
                                   channel_begin, channel_group),
                   global_count(input, samples, batch_group), momentum);
  }
  const auto type = x.scalar_type();
  const at::Tensor result =
      normalise(x, in_type(weight, type), in_type(bias, type), statistics[0],
                statistics[1], eps);
  return {result.to(input.scalar_type()), statistics[0].clone(),
          (statistics[1] + eps).rsqrt_()};
}

Normalised forward_meta(const at::Tensor& input, const Optional& /*weight*/,
                        const Optional& /*bias*/,
                        const Optional& /*running_mean*/,
                        const Optional& /*running_var*/, double /*momentum*/,
                        double /*eps*/, std::int64_t /*channel_begin*/,
                        at::IntArrayRef /*samples*/,
                        const std::string& /*batch_group*/,
                        const std::string& /*channel_group*/) {
  const auto options = input.options().dtype(compute_type(input));
  return {at::empty_like(input, {}, input.suggest_memory_format()),
          at::empty({input.size(1)}, options),
          at::empty({input.size(1)}, options)};
}

Normalised call_forward(const at::Tensor& input, const Optional& weight,
                        const Optional& bias, const Optional& running_mean,
                        const Optional& running_var, double momentum,
                        double eps, std::int64_t channel_begin,
                        at::IntArrayRef samples, const std::string& batch_group,
                        const std::string& channel_group) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("tensoropt::_batch_norm_sharded", "")
          .typed<decltype(forward_kernel)>();
  return op.call(input, weight, bias, running_mean, running_var, momentum, eps,
                 channel_begin, samples, batch_group, channel_group);
}

std::vector<std::int64_t> all_but_channels(const at::Tensor& x) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t dim = 2; dim < x.dim(); ++dim) dims.push_back(dim);
  return dims;
}

// The output but for the bias, by operators that can be differentiated.
at::Tensor normalise_again(const at::Tensor& input, const at::Tensor& weight,
                           double eps, at::IntArrayRef samples,
                           const std::string& group) {
  const at::Tensor x = input.to(compute_type(input));
  const double count = global_count(input, samples, group);
  const auto mean_of = [&](const at::Tensor& elements) {
    const at::Tensor sum = elements.sum(all_but_channels(x));
    return summed_again(sum, group, GradientOn::kEach) / count;
  };
  const at::Tensor centred = x - per_channel(mean_of(x), x);
  const at::Tensor inverse = (mean_of(centred.square()) + eps).rsqrt();
  const at::Tensor scale =
      weight.defined() ? inverse * weight.to(inverse.scalar_type()) : inverse;
  return (centred * per_channel(scale, x)).to(input.scalar_type());
}

struct BatchNormSharded : torch::autograd::Function<BatchNormSharded> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const Optional& weight, const Optional& bias,
                            const Optional& running_mean,
                            const Optional& running_var, double momentum,
                            double eps, std::int64_t channel_begin,
                            at::IntArrayRef samples,
                            const std::string& batch_group,
                            const std::string& channel_group) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [result, mean, inverse] =
        call_forward(input, weight, bias, running_mean, running_var, momentum,
                     eps, channel_begin, samples, batch_group, channel_group);
    context->save_for_backward(
        {input, weight.value_or(at::Tensor()), mean, inverse});
    context->saved_data["eps"] = eps;
    context->saved_data["batch_group"] = batch_group;
    context->saved_data["samples"] = samples;
    if (weight.has_value()) {
      context->saved_data["weight_type"] = weight->scalar_type();
    }
    if (bias.has_value()) {
      context->saved_data["bias_type"] = bias->scalar_type();
    }
    return result;
  }

  static torch::autograd::variable_list backward(
      AutogradContext* context, torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    if (is_differentiated_again()) {
      return differentiated_again(context, saved, gradients[0]);
    }
    const at::AutoDispatchBelowADInplaceOrView guard;
    const at::Tensor& inverse = saved[3];
    const at::Tensor gradient = gradients[0].to(inverse.scalar_type());
    const at::Tensor x = saved[0].to(inverse.scalar_type());
    static const auto sums_op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("tensoropt::_batch_gradient_sums", "")
            .typed<decltype(batch_gradient_sums)>();
    at::Tensor sums = sums_op.call(gradient, x, saved[2], inverse);
    torch::autograd::variable_list result(11);
    const auto& types = context->saved_data;
    if (const auto type = types.find("weight_type"); type != types.end()) {
      result[1] = sums[1].to(type->second.toScalarType(), false, true);
    }
    if (const auto type = types.find("bias_type"); type != types.end()) {
      result[2] = sums[0].to(type->second.toScalarType(), false, true);
    }
    if (context->needs_input_grad(0)) {
      const std::string group = types.at("batch_group").toStringRef();
      if (!group.empty()) sum_over_ranks(sums, group);
      const auto samples = types.at("samples").toIntVector();
      sums.div_(global_count(saved[0], samples, group));
      result[0] = input_gradient(gradient, x, sums, saved[2], inverse, saved[1])
                      .to(saved[0].scalar_type());
    }
    return result;
  }

 private:
  static torch::autograd::variable_list differentiated_again(
      AutogradContext* context, const torch::autograd::variable_list& saved,
      const at::Tensor& gradient) {
    auto& of_call = context->saved_data;
    const auto compute = [&](const torch::autograd::variable_list& operands) {
      return normalise_again(operands[0], operands[1],
                             of_call["eps"].toDouble(),
                             of_call["samples"].toIntVector(),
                             of_call["batch_group"].toStringRef());
    };
    torch::autograd::variable_list result =
        gradients_again({saved[0], saved[1]}, gradient, compute);
    result.resize(11);
    if (const auto type = of_call.find("bias_type"); type != of_call.end()) {
      result[2] = gradient.sum(all_but_channels(gradient))
                      .to(type->second.toScalarType());
    }
    return result;
  }

  // (gradient - its mean - normalised * mean of gradient * normalised)
  // * weight / deviation.
  static at::Tensor input_gradient(const at::Tensor& gradient,
                                   const at::Tensor& x, const at::Tensor& means,
                                   const at::Tensor& mean,
                                   const at::Tensor& inverse,
                                   const at::Tensor& weight) {
    const at::Tensor scale =
        weight.defined() ? inverse * weight.to(inverse.scalar_type()) : inverse;
    const at::Tensor variance = inverse.pow(-2);
    return normalise(x, (means[1] * scale).neg_(), (means[0] * scale).neg_(),
                     mean, variance, /*eps=*/0)
        .addcmul_(gradient, per_channel(scale, gradient));
  }
};

at::Tensor batch_norm_sharded(
    const at::Tensor& input, const Optional& weight, const Optional& bias,
    const Optional& running_mean, const Optional& running_var, double momentum,
    double eps, std::int64_t channel_begin, at::IntArrayRef samples,
    const std::string& batch_group, const std::string& channel_group) {
  return std::get<0>(call_forward(input, weight, bias, running_mean,
                                  running_var, momentum, eps, channel_begin,
                                  samples, batch_group, channel_group));
}

at::Tensor batch_norm_sharded_autograd(
    const at::Tensor& input, const Optional& weight, const Optional& bias,
    const Optional& running_mean, const Optional& running_var, double momentum,
    double eps, std::int64_t channel_begin, at::IntArrayRef samples,
    const std::string& batch_group, const std::string& channel_group) {
  return BatchNormSharded::apply(input, weight, bias, running_mean, running_var,
                                 momentum, eps, channel_begin, samples,
                                 batch_group, channel_group);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "batch_norm_sharded(Tensor input, Tensor? weight, Tensor? bias, "
      "Tensor(a!)? running_mean, Tensor(b!)? running_var, float momentum, "
      "float eps, int channel_begin, int[] samples, str batch_group, "
      "str channel_group) -> "
      "Tensor");
  library.def(
      "_batch_norm_sharded(Tensor input, Tensor? weight, Tensor? bias, "
      "Tensor(a!)? running_mean, Tensor(b!)? running_var, float momentum, "
      "float eps, int channel_begin, int[] samples, str batch_group, "
      "str channel_group) -> "
      "(Tensor, Tensor, Tensor)");
  library.def("_batch_statistics(Tensor x) -> Tensor");
  library.def(
      "_batch_gradient_sums(Tensor gradient, Tensor x, Tensor mean, "
      "Tensor inverse) -> Tensor");
}
// As CompositeExplicitAutograd, but simulations do not look inside.
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutogradNonFunctional, library) {
  library.impl("_batch_statistics", batch_statistics);
  library.impl("_batch_gradient_sums", batch_gradient_sums);
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("batch_norm_sharded", batch_norm_sharded);
  library.impl("_batch_norm_sharded", forward_kernel);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("_batch_norm_sharded", forward_meta);
  library.impl("_batch_statistics", batch_statistics_meta);
  library.impl("_batch_gradient_sums", batch_gradient_sums_meta);
}
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("batch_norm_sharded", batch_norm_sharded_autograd);
}

}  // namespace tensoropt::batch_norm_op
