// The notation of rules, as reports write it and users declare it:
//
//   b k, n k, n -> b n
//
// One term per tensor, operands before the arrow, outputs after it; one word
// per dim. A letter (and letters and digits after it) names a factor, "_" is a
// dim that stays whole, "..." (once in a term, only in declarations) any number
// of dims, aligned at the right as broadcasting does. The term of a scalar is
// "()" or empty. A factor that no output has is a reduction.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rules/rule.h"

namespace tensoropt {

using DimNames = std::vector<std::string>;

constexpr std::string_view kWholeDim = "_";
constexpr std::string_view kAnyDims = "...";

struct Pattern {
  std::vector<DimNames> operands;
  std::vector<DimNames> outputs;

  // Names in order of first appearance.
  std::vector<std::string> factors() const;
};

// Throws UserError that says what is wrong in `text`. O(length).
Pattern parse_pattern(std::string_view text);

// The rule of an operator, e.g. "b k, n k, n -> b n"; joint factors follow as
// "; te: t e".
std::string to_string(const Rule& rule);

}  // namespace tensoropt
