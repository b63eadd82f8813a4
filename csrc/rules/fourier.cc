// Fourier transforms. The dims that are transformed stay whole, all others
// split; they are linear, and backward is another transform.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// Of a complex transform: FLOPs per element and per factor 2 of its size.
constexpr double kFlopsPerElement = 5;

enum class Dims { kOne, kLastTwo, kAny };

struct Transform {
  const char* target;
  Dims dims;
};

constexpr Transform kTransforms[] = {
    {"fft_fft", Dims::kOne},       {"fft_ifft", Dims::kOne},
    {"fft_rfft", Dims::kOne},      {"fft_irfft", Dims::kOne},
    {"fft_hfft", Dims::kOne},      {"fft_ihfft", Dims::kOne},
    {"fft_fft2", Dims::kLastTwo},  {"fft_ifft2", Dims::kLastTwo},
    {"fft_rfft2", Dims::kLastTwo}, {"fft_irfft2", Dims::kLastTwo},
    {"fft_hfft2", Dims::kLastTwo}, {"fft_ihfft2", Dims::kLastTwo},
    {"fft_fftn", Dims::kAny},      {"fft_ifftn", Dims::kAny},
    {"fft_rfftn", Dims::kAny},     {"fft_irfftn", Dims::kAny},
    {"fft_hfftn", Dims::kAny},     {"fft_ihfftn", Dims::kAny},
    {"_fft_r2c", Dims::kAny},      {"_fft_c2r", Dims::kAny},
    {"_fft_c2c", Dims::kAny},
};

// Without dims those that have a size are the last ones, else all are.
std::vector<bool> transformed_dims(const Node& node, Dims dims,
                                   std::size_t rank) {
  if (dims == Dims::kOne) return mark_dim(node, "dim", -1, rank);
  std::vector<std::int64_t> chosen = node.ints_argument("dim");
  if (chosen.empty() && dims == Dims::kLastTwo) chosen = {-2, -1};
  if (!chosen.empty()) return mark_dims(chosen, rank);
  const std::size_t sized = node.ints_argument("s").size();
  std::vector<bool> marked(rank, true);
  if (sized > 0 && sized < rank) {
    std::fill_n(marked.begin(), rank - sized, false);
  }
  return marked;
}

// Of `elements` complex numbers, transformed `size` at a time.
double transform_flops(double elements, double size) {
  return kFlopsPerElement * elements * std::max(1.0, std::log2(size));
}

// A transform with a real side computes half of what its longer side has.
Rule transform_rule(const Graph& graph, const Node& node, Dims dims) {
  RuleBuilder rule(graph, node);
  const Shape& in = rule.operand_shape(0);
  const Shape& out = rule.output_shape(0);
  const std::vector<bool> transformed = transformed_dims(node, dims, in.size());
  rule.keep_dims(transformed);
  rule.linear_in({0});
  double size = 1;
  double elements = 1;
  for (std::size_t dim = 0; dim < in.size(); ++dim) {
    const auto longer = static_cast<double>(std::max(in[dim], out[dim]));
    if (transformed[dim]) size *= longer;
    elements *= longer;
  }
  const auto is_real = [](const TensorMeta& meta) {
    return real_dtype(meta.dtype) == meta.dtype;
  };
  const bool half = is_real(graph.operand(node, 0).meta) ||
                    is_real(graph.output(node, 0).meta);
  const double flops = transform_flops(elements, size) / (half ? 2 : 1);
  rule.flops(flops, flops);
  return rule.take();
}

// Transforms of windows that move along the last dim of [b, t] or [t]. A row
// is not split.
Rule short_time_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& in = rule.operand_shape(0);
  const Shape& out = rule.output_shape(0);
  const std::vector<int> rows = rule.keep_dims(mark_dims({-1}, in.size()));
  if (in.size() == 2) rule.bind_output(0, 0, rows[0]);
  if (rule.num_operands() > 1) rule.save_product(0, 1);
  rule.linear_in({0});
  const std::int64_t size = node.int_argument("n_fft", 1);
  const std::int64_t windows = out[in.size()] * (in.size() == 2 ? in[0] : 1);
  const double flops = transform_flops(static_cast<double>(windows * size),
                                       static_cast<double>(size)) /
                       2;
  rule.flops(flops, flops);
  return rule.take();
}

}  // namespace

void register_fourier(Registry& registry) {
  for (const Transform& transform : kTransforms) {
    registry.add(
        str_format("aten.{}.default", transform.target),
        {[dims = transform.dims](const Graph& graph, const Node& node) {
           return transform_rule(graph, node, dims);
         },
         {}});
  }
  for (const char* target : {"aten.stft.default", "aten.stft.center"}) {
    registry.add(target, {short_time_rule, {}});
  }
}

}  // namespace tensoropt
