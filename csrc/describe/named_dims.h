// What dims are called: tensor dims that play the same part in all layers share
// a name, as in Mesh-TensorFlow, whose users give the names by hand.
//
//   NamedDims dims(space);
//   dims.of(x, 0).name == NamedDims::kBatch;
//   dims.of_factor(node, 1).name;         // kUnnamed: nothing splits it
//   dims.size(name);
//
// Dims that rules tie together are of one class (dim_classes.h). The batch is
// dim 0 of the first input, or the dim that is shared out, and those of inputs
// of equal size. Other classes that
// some operator can split share a name if they have the same size: the smallest
// of their dims, so that heads and the features they are parts of are told from
// other features.
#pragma once

#include <cstdint>
#include <vector>

#include "space/space.h"

namespace tensoropt {

class NamedDims {
 public:
  static constexpr int kUnnamed = -1;
  static constexpr int kBatch = 0;

  struct Dim {
    int name = kUnnamed;
    bool of_weight = false;   // parameters of two and more dims have it
    bool kept_whole = false;  // some operator needs it whole, as norms do
    auto operator<=>(const Dim&) const = default;
  };

  // O(all dims of all values).
  explicit NamedDims(const StrategySpace& space);

  // Names are 0 (the batch) to num_names() - 1, the others by size.
  int num_names() const { return static_cast<int>(sizes_.size()); }
  std::int64_t size(int name) const { return sizes_[name]; }
  const Dim& of(ValueId value, int dim) const {
    return dims_[space_.model().dim_classes().of(value, dim)];
  }
  Dim of_factor(const Node& node, int factor) const;

 private:
  void note_smallest(std::vector<std::int64_t>& smallest) const;
  std::vector<bool> splittable() const;
  void name_batch();
  void note_weights();
  void note_whole();

  const StrategySpace& space_;
  std::vector<Dim> dims_;            // by class
  std::vector<std::int64_t> sizes_;  // by name
};

// The operand is a parameter, or a view of one.
bool is_parameter(const StrategySpace& space, ValueId value);

// By factor of an operator: a weight among its operands, a parameter of two and
// more dims, has it.
std::vector<bool> weight_factors(const StrategySpace& space, const Node& node);

}  // namespace tensoropt
