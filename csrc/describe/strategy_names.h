// Strategies by the labels of what they choose, which mean the same wherever
// the configs that rules give are numbered otherwise: plans are saved so.
//
//   const StrategyNames names(space);
//   const NamedChoices saved = names.of(strategy);
//   const Strategy again = names.strategy(saved);  // without its costs
//
// Nodes and edges are those of one graph, in its order: what they are called
// depends on how it was captured, and is for readers.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cost/parts.h"
#include "problem/strategy.h"
#include "space/space.h"

namespace tensoropt {

struct NamedChoices {
  std::vector<std::string> configs;  // label by node
  // What is kept, held and summed, as in "before, held", by edge; edges with
  // none of it are left out.
  std::map<SpaceEdgeId, std::string> edges;
};

class StrategyNames {
 public:
  // The space must outlive this.
  explicit StrategyNames(const StrategySpace& space,
                         const StepShape& shape = {});
  StrategyNames(const StrategyNames&) = delete;
  StrategyNames& operator=(const StrategyNames&) = delete;

  // By its ends and the operand: "layer.weight -> linear[1]".
  std::string edge_name(SpaceEdgeId edge) const;

  // Throws UserError if the strategy is not one of the space.
  NamedChoices of(const Strategy& strategy) const;

  // Throws UserError, naming it, for an edge that cannot be crossed as the
  // strategy does. Looks at the layouts of all edges.
  void check_edges(const Strategy& strategy) const;

  // Throws UserError, naming it, for a choice that the space does not have.
  Strategy strategy(const NamedChoices& choices) const;

 private:
  using Numbers = std::unordered_map<std::string_view, int>;

  const StrategySpace& space_;
  const StepShape shape_;
  std::unordered_map<const ConfigList*, Numbers> config_numbers_;
};

}  // namespace tensoropt
