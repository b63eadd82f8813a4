#include "rules/windows.h"

#include <algorithm>
#include <cstdlib>

namespace tensoropt {

namespace {

std::int64_t at_dim(const std::vector<std::int64_t>& values, std::size_t dim,
                    std::int64_t fallback) {
  if (values.empty()) return fallback;
  return values[values.size() == 1 ? 0 : dim];
}

// The largest number of parts that divide the output evenly and are as long as
// the borders.
std::int64_t most_parts(const Window& window, std::int64_t input,
                        std::int64_t output) {
  if (output * window.stride != input) return 1;
  const std::int64_t border = std::max(window.low(), std::abs(window.high()));
  for (std::int64_t parts = output; parts > 1; --parts) {
    if (output % parts == 0 && input / parts >= border) return parts;
  }
  return 1;
}

}  // namespace

std::vector<Window> windows_of(const Node& node,
                               const std::vector<std::int64_t>& kernel) {
  const auto stride = node.ints_argument("stride");
  const auto padding = node.ints_argument("padding");
  const auto dilation = node.ints_argument("dilation");
  std::vector<Window> windows;
  for (std::size_t dim = 0; dim < kernel.size(); ++dim) {
    windows.push_back({kernel[dim], at_dim(stride, dim, kernel[dim]),
                       at_dim(padding, dim, 0), at_dim(dilation, dim, 1)});
  }
  return windows;
}

int bind_windows(RuleBuilder& rule, const std::vector<Window>& windows) {
  std::vector<int> factors;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const int dim = kFirstSpatialDim + static_cast<int>(i);
    factors.push_back(rule.spatial_factor(
        str_format("y{}", i), most_parts(windows[i], rule.operand_shape(0)[dim],
                                         rule.output_shape(0)[dim])));
    rule.bind_operand(0, dim, factors.back());
    rule.bind_output(0, dim, factors.back());
  }
  for (std::size_t i = 0; i < windows.size(); ++i) {
    rule.lends_borders(
        kFirstSpatialDim + static_cast<int>(i),
        windows[i].low() + std::max<std::int64_t>(windows[i].high(), 0));
  }
  return factors.front();
}

void add_halos(LocalForm& form, const std::vector<Window>& windows,
               int first_factor, double fill, const LocalContext& context) {
  std::vector<std::int64_t> padding;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const AxisSet axes = context.factor_axes[first_factor + i];
    padding.push_back(axes == 0 ? windows[i].padding : 0);
    if (axes == 0 || (windows[i].low() == 0 && windows[i].high() == 0)) {
      continue;
    }
    form.halos.push_back({static_cast<int>(kFirstSpatialDim + i),
                          windows[i].low(), windows[i].high(), fill, axes});
  }
  if (!form.halos.empty()) {
    form.arguments.push_back({"padding", Literal(padding)});
  }
}

}  // namespace tensoropt
