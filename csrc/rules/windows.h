// Spatial dims on which an operator slides a window: convolutions and pooling.
//
//   const std::vector<Window> windows = windows_of(node, {3, 3});
//   const int first = bind_windows(rule, windows);      // factors y, x
//   add_halos(form, windows, first, 0.0, context);      // in the local form
//
// Where such a dim is split, a part computes its share of the output from its
// share of the input and from borders that the neighbours lend it. Output and
// input have to be cut alike, so the stride must divide the input into the
// output, and no border may be longer than a part.
#pragma once

#include <cstdint>
#include <vector>

#include "rules/builder.h"

namespace tensoropt {

constexpr int kFirstSpatialDim = 2;  // after batch and channels

struct Window {
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;

  // Entries that a part needs of the part before, and after; those after may be
  // less than 0, which are not needed of the own ones.
  std::int64_t low() const { return padding; }
  std::int64_t high() const {
    return dilation * (kernel - 1) + 1 - padding - stride;
  }
};

// The windows of a call with arguments `stride` (empty: the kernel), `padding`
// and, if it has that, `dilation`, one number or one for each spatial dim.
std::vector<Window> windows_of(const Node& node,
                               const std::vector<std::int64_t>& kernel);

// Adds one factor for each spatial dim of operand 0 and output 0, of size 1
// where the dim cannot be split, and the exchange of borders. To be called when
// all other dims are bound. Returns the first factor.
int bind_windows(RuleBuilder& rule, const std::vector<Window>& windows);

// What the local form needs where factors from `first_factor` on are split:
// borders, with `fill` for the padding, and no padding.
void add_halos(LocalForm& form, const std::vector<Window>& windows,
               int first_factor, double fill, const LocalContext& context);

}  // namespace tensoropt
