// Strategies by the names of what they choose, which mean the same wherever the
// configs that rules give are numbered otherwise: plans are saved so.
//
//   const StrategyNames names(space);
//   const NamedChoices saved = names.of(strategy);
//   const Strategy again = names.strategy(saved);  // without its costs
//
// An edge is named by its ends and the operand: "layer.weight -> linear[1]".
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "problem/strategy.h"
#include "space/space.h"

namespace tensoropt {

struct NamedChoices {
  std::map<std::string, std::string> configs;  // label by node
  // What is kept, held and summed, as in "before, held", by edge; edges on
  // which nothing is are left out.
  std::map<std::string, std::string> edges;
};

class StrategyNames {
 public:
  // The space must outlive this.
  explicit StrategyNames(const StrategySpace& space);
  StrategyNames(const StrategyNames&) = delete;
  StrategyNames& operator=(const StrategyNames&) = delete;

  // Throws UserError if the strategy is not one of the space.
  NamedChoices of(const Strategy& strategy) const;

  // Throws UserError, naming it, for an edge that cannot be crossed as the
  // strategy does. Looks at the layouts of all edges.
  void check_edges(const Strategy& strategy) const;

  // Throws UserError, naming it, for a node or an edge that the space does not
  // have, for a node without a choice, and for a choice that is unknown there.
  Strategy strategy(const NamedChoices& choices) const;

 private:
  using Numbers = std::unordered_map<std::string_view, int>;

  int config_of(const SpaceNode& node, const NamedChoices& choices) const;
  void check_known(const NamedChoices& choices) const;

  const StrategySpace& space_;
  std::vector<std::string> edges_;
  Numbers edge_numbers_;
  std::unordered_map<const ConfigList*, Numbers> config_numbers_;
};

}  // namespace tensoropt
