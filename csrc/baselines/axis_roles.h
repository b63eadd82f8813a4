// What a mesh axis is used for by all operators, parameters and relays alike,
// as in strategies that are described by one sentence.
//
//   RoleMasks masks(space);
//   masks.allowed({{RoleKind::kShard}, {RoleKind::kTensor}});
//
// A node may take the configs that play the roles on as many axes as possible
// and do nothing on the others (a batch that does not divide, a bias too
// short). Inputs, the output and operators that take the layout they get
// (SpaceEdge::follows) are free. Where the space lists only one order of alike
// axes, so are roles: a config may play them in any order among such axes.
#pragma once

#include <vector>

#include "describe/named_dims.h"
#include "problem/propagation.h"

namespace tensoropt {

enum class RoleKind {
  kSplit,       // dims of one name are split, everywhere
  kData,        // the batch is split, parameters are replicated
  kShard,       // the batch is split, parameters are stored sharded (ZeRO-3)
  kTensor,      // what weights have is split, never the batch (Megatron)
  kEverything,  // whatever can be split is (ToFu)
};

struct AxisRole {
  RoleKind kind = RoleKind::kData;
  int name = NamedDims::kUnnamed;  // for kSplit; unnamed: nothing is split
  auto operator<=>(const AxisRole&) const = default;
};

// One per mesh axis.
using AxisRoles = std::vector<AxisRole>;

class RoleMasks {
 public:
  explicit RoleMasks(const StrategySpace& space);

  const NamedDims& dims() const { return dims_; }
  // By space node. O(configs of all different nodes x orders of alike axes).
  std::vector<ConfigMask> allowed(const AxisRoles& roles) const;

 private:
  enum class Kind {
    kFree,
    kOp,
    kParameter,
    kConstant,
    kParameterRelay,
    kRelay
  };
  enum class Fit { kAgainst, kIdle, kPlays };

  // Everything about a node that roles look at.
  struct Part {
    const ConfigList* configs = nullptr;
    Kind kind = Kind::kFree;
    std::vector<NamedDims::Dim> dims;  // of factors, or of the tensor
    std::vector<bool> in_weight;       // by factor: a weight among the operands
    auto operator<=>(const Part&) const = default;
  };

  Part part_of(const SpaceNode& node) const;
  void add_factors(const Node& node, Part& part) const;
  void add_tensor(ValueId value, Part& part) const;
  std::vector<AxisRoles> orders_of(const AxisRoles& roles) const;
  ConfigMask mask(const Part& part, const std::vector<AxisRoles>& orders) const;
  static int score(const Part& part, const SpaceConfig& config,
                   const AxisRoles& roles);
  static Fit fit(const Part& part, int split, AxisRole role);
  static Fit fit_name(const Part& part, int split, int name);
  static Fit fit_tensor(const Part& part, int split);

  const StrategySpace& space_;
  NamedDims dims_;
  std::vector<Part> parts_;  // different ones
  std::vector<int> part_of_node_;
};

}  // namespace tensoropt
