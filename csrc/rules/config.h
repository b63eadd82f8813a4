// Op configs and what follows from them.
//
//   for (const OpConfig& config : enumerate_configs(rule, mesh, options)) {
//     OpInterface interface = interface_of(rule, config);
//     interface.operands[0].value;      // layout operand 0 must have
//     interface.operands[0].gradient;   // layout its gradient comes out in
//   }
//
// Backward is derived, never written:
//  - an operand that has the split factor is Shard, and so is its gradient;
//  - an operand that lacks it is Replicate, its gradient Partial;
//  - an output that lacks it is Partial and its gradient comes in Replicate.
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rules/rule.h"

namespace tensoropt {

// What one mesh axis does to an operator: splits a factor, passes pending sums
// through a linear set, or nothing (every rank does the same).
class AxisUse {
 public:
  static constexpr AxisUse none() { return AxisUse(-1); }
  static constexpr AxisUse factor(int index) { return AxisUse(index); }
  static constexpr AxisUse linear(int set) { return AxisUse(-2 - set); }

  constexpr AxisUse() = default;
  constexpr bool is_none() const { return code_ == -1; }
  constexpr bool is_factor() const { return code_ >= 0; }
  constexpr bool is_linear() const { return code_ <= -2; }
  constexpr int factor_index() const { return code_; }
  constexpr int linear_set() const { return -2 - code_; }
  constexpr bool operator==(const AxisUse&) const = default;

 private:
  explicit constexpr AxisUse(int code)
      : code_(static_cast<std::int8_t>(code)) {}
  std::int8_t code_ = -1;
};

// One use per mesh axis.
using OpConfig = std::vector<AxisUse>;

// kOrdered lists alike axes in one canonical order of uses only; kFull lists
// all orders.
enum class ConfigSpace { kOrdered, kFull };

// Neighbouring axes with the same use form a run: an operator whose config has
// r runs sees the devices as a mesh of r axes.
struct ConfigLimits {
  ConfigSpace space = ConfigSpace::kOrdered;
  int max_runs = std::numeric_limits<int>::max();
};

// The layouts of a value and of its gradient at one end of an edge.
struct Port {
  Layout value;
  Layout gradient;
  bool operator==(const Port&) const = default;
};

struct OpInterface {
  std::vector<Port> operands;  // what the operator needs, and gives back
  std::vector<Port> outputs;   // what it gives, and needs back
};

// Factors (of layouts: dims) with the numbers of parts, met on the way, that do
// not divide their size and may not differ: all configs with such a split are
// left out.
using UnevenSplits = std::set<std::pair<int, std::int64_t>>;

// Every config whose splits divide the factor sizes evenly, or into parts that
// differ where the rule allows it and none is empty, in a fixed order.
// Complexity: the number of configs times the number of axes.
std::vector<OpConfig> enumerate_configs(const Rule& rule, const Mesh& mesh,
                                        const ConfigLimits& limits,
                                        UnevenSplits* left_out = nullptr);

// The dim that a split of the factor, or of one that it splits jointly, cuts;
// -1 if the tensor has none.
int dim_of(const Rule& rule, const TensorRule& tensor, int factor);

OpInterface interface_of(const Rule& rule, const OpConfig& config);

// The axes that split each factor.
std::vector<AxisSet> factor_axes(const Rule& rule, const OpConfig& config);

// E.g. "+0.1": pending sums pass from operands 0 and 1.
std::string label_of(const std::vector<int>& linear_set);

// E.g. "b0,b0,n,+0".
std::string to_string(const Rule& rule, const OpConfig& config);

// All ways to place a tensor without pending sums, canonical order for alike
// axes unless the space is full. Sizes must divide, except of `uneven` dims,
// whose parts must not be empty.
std::vector<Layout> enumerate_layouts(const Shape& shape, const Mesh& mesh,
                                      const ConfigLimits& limits,
                                      DimSet uneven = 0,
                                      UnevenSplits* left_out = nullptr);

}  // namespace tensoropt
