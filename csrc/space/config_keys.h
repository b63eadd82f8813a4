// When nodes share their configs and tables: what these depend on.
//
//   std::map<ConfigKey, std::unique_ptr<ConfigList>> lists;
//   lists[OpKey{.rule = rule, ...}]
//
// All members of keys and of rules take part in comparisons, which are the
// defaulted ones, so that a new member cannot be forgotten: nodes that differ
// in it have lists of their own.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ir/graph.h"
#include "rules/rule.h"
#include "sharding/layout.h"

namespace tensoropt {

struct TensorKey {
  TensorMeta meta;
  bool requires_grad = false;

  auto operator<=>(const TensorKey&) const = default;
};

struct OpKey {
  Rule rule;
  std::vector<TensorKey> operands;
  std::vector<TensorKey> outputs;
  bool copies_parameter = false;
  bool may_run_again = false;
  // Measured times tell operators with equal rules apart: the call's key.
  std::string measured;

  auto operator<=>(const OpKey&) const = default;
};

// Of an input, parameter or constant.
struct SourceKey {
  NodeKind kind = NodeKind::kInput;
  TensorKey tensor;
  bool is_stored = false;
  int shared_dim = -1;
  std::optional<Layout> pinned;  // stored so
  DimSet uneven_dims = 0;

  auto operator<=>(const SourceKey&) const = default;
};

struct RelayKey {
  TensorKey tensor;
  Shape splittable_shape;
  bool may_be_kept = false;
  bool may_leave = false;
  bool shares_pending_gradients = false;
  DimSet uneven_dims = 0;

  auto operator<=>(const RelayKey&) const = default;
};

// The output: there is one.
struct OutputKey {
  auto operator<=>(const OutputKey&) const = default;
};

using ConfigKey = std::variant<OpKey, SourceKey, RelayKey, OutputKey>;

}  // namespace tensoropt
