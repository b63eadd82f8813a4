// Images [n, c, ...] that are resized, sampled or rearranged. Batch and
// channels are split; spatial dims only where no pixel meets others.

#include <algorithm>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// Batch and channels of input and output.
std::vector<int> bind_images(RuleBuilder& rule) {
  std::vector<int> factors;
  for (int dim = 0; dim < 2; ++dim) {
    factors.push_back(
        rule.factor(dim == 0 ? "b" : "c", rule.operand_shape(0)[dim]));
    rule.bind_operand(0, dim, factors[dim]);
    rule.bind_output(0, dim, factors[dim]);
  }
  return factors;
}

// Nothing is saved but sizes.
Rule resize_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  bind_images(rule);
  rule.linear_in({0});
  rule.flops(4 * rule.output_elements(), 4 * rule.output_elements());
  return rule.take();
}

// Input [n, c, ...] at the places [n, ..., 2 or 3] of a grid.
Rule grid_sample_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.bind_operand(1, 0, bind_images(rule)[0]);
  const auto& out = rule.output_shape(0);
  for (int dim = 2; dim < static_cast<int>(out.size()); ++dim) {
    const int place = rule.factor(str_format("d{}", dim), out[dim]);
    rule.bind_operand(1, dim - 1, place);
    rule.bind_output(0, dim, place);
  }
  rule.save_operand(0);
  rule.save_operand(1);
  rule.linear_in({0});
  rule.flops(8 * rule.output_elements(), 16 * rule.output_elements());
  return rule.take();
}

// One grid for each transformation of a batch.
Rule affine_grid_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const int batch = rule.factor("b", rule.operand_shape(0)[0]);
  rule.bind_operand(0, 0, batch);
  rule.bind_output(0, 0, batch);
  rule.flops(8 * rule.output_elements(), 8 * rule.output_elements());
  return rule.take();
}

LocalForm affine_grid_local(const Graph&, const Node& node,
                            const LocalContext& context) {
  auto size = node.ints_argument("size");
  size[0] = context.output_shapes[0][0];
  LocalForm form;
  form.arguments.push_back({"size", Literal(size)});
  return form;
}

// [..., c * r * r, h, w] <-> [..., c, h * r, w * r]: blocks of the smaller dims
// are blocks of the larger ones.
Rule pixels_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& in = rule.operand_shape(0);
  const auto& out = rule.output_shape(0);
  for (int dim = 0; dim < static_cast<int>(in.size()); ++dim) {
    const int factor =
        rule.factor(str_format("d{}", dim), std::min(in[dim], out[dim]));
    rule.bind_operand(0, dim, factor);
    rule.bind_output(0, dim, factor);
  }
  rule.linear_in({0});
  rule.flops(rule.output_elements(), rule.output_elements());
  return rule.take();
}

// Patches of images as columns [n, c * k, l], and back; without a batch all
// dims come one place earlier.
Rule patches_rule(const Graph& graph, const Node& node, std::size_t rank) {
  RuleBuilder rule(graph, node);
  const auto& in = rule.operand_shape(0);
  const auto& out = rule.output_shape(0);
  const int channels = in.size() == rank ? 1 : 0;
  for (int dim = 0; dim <= channels; ++dim) {
    const int factor =
        rule.factor(dim == channels ? "c" : "b", std::min(in[dim], out[dim]));
    rule.bind_operand(0, dim, factor);
    rule.bind_output(0, dim, factor);
  }
  rule.linear_in({0});
  rule.flops(rule.output_elements(), rule.output_elements());
  return rule.take();
}

// Channels change places.
Rule channel_shuffle_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  std::vector<bool> fixed(rule.operand_shape(0).size(), false);
  fixed[1] = true;
  rule.keep_dims(fixed);
  rule.linear_in({0});
  rule.flops(rule.output_elements(), rule.output_elements());
  return rule.take();
}

void add_patches(Registry& registry, const char* target, std::size_t rank) {
  registry.add(target, {[rank](const Graph& graph, const Node& node) {
                          return patches_rule(graph, node, rank);
                        },
                        {}});
}

}  // namespace

void register_sampling(Registry& registry) {
  for (const char* name :
       {"upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
        "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
        "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa"}) {
    for (const char* overload : {"vec", "default"}) {
      registry.add(str_format("aten.{}.{}", name, overload), {resize_rule, {}});
    }
  }
  for (const char* target :
       {"aten.grid_sampler.default", "aten.grid_sampler_2d.default",
        "aten.grid_sampler_3d.default"}) {
    registry.add(target, {grid_sample_rule, {}});
  }
  registry.add("aten.affine_grid_generator.default",
               {affine_grid_rule, affine_grid_local});
  for (const char* target :
       {"aten.pixel_shuffle.default", "aten.pixel_unshuffle.default"}) {
    registry.add(target, {pixels_rule, {}});
  }
  add_patches(registry, "aten.im2col.default", 4);
  add_patches(registry, "aten.col2im.default", 3);
  for (const char* target : {"aten.channel_shuffle.default",
                             "aten.native_channel_shuffle.default"}) {
    registry.add(target, {channel_shuffle_rule, {}});
  }
}

}  // namespace tensoropt
