// Which operators may run again in backward, so that what they make need not be
// kept for it (recomputation, activation checkpointing).
//
//   Recomputation recomputation(graph, rules, may_repeat);
//   for (const ChainMode& mode : recomputation.modes(node)) ...
//
// Operators that are joined by values of one use are a **chain**: what one of
// them needs, the one before it makes. All of a chain take the same mode, which
// says who of them runs again. Only what backward asks for does: the last
// operators of a chain often are not among them.
//
// What leaves a chain is kept or not as the relay of the value says. A relay's
// value may also be recomputed by the chain that ends with it, unless the value
// ends a **segment**: a few products in a row, behind which one value is all
// that later ones have of earlier ones. So at most one segment is recomputed at
// a time.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "rules/rule.h"

namespace tensoropt {

enum class Recomputed {
  kNothing,
  kSelective,   // all but products with weights, and fused attention
  kFull,        // all that makes what backward needs inside the chain
  kWithOutput,  // and the value that leaves it, which a relay does not keep
};

std::string_view to_string(Recomputed recomputed);

struct ChainMode {
  Recomputed recomputed = Recomputed::kNothing;
  bool runs_again = false;  // this operator, in this mode
};

class Recomputation {
 public:
  using Predicate = std::function<bool(const Node&)>;

  // Nothing is recomputed.
  explicit Recomputation(const Graph& graph);

  // `may_repeat`: running the operator twice does what running it once does.
  Recomputation(const Graph& graph, const std::vector<Rule>& rules,
                const Predicate& may_repeat);

  // Of an operator; the first one is kNothing. Equal in number and order for
  // all of a chain.
  const std::vector<ChainMode>& modes(NodeId node) const {
    return modes_[node];
  }

  // Whether producer and only consumer of a value are in one chain.
  bool joins(ValueId value) const { return joins_[value]; }

  // Whether the relay of a value may leave it to the chain that makes it.
  bool may_leave(ValueId value) const { return may_leave_[value]; }

  // Whether some consumer of the value may run again.
  bool may_be_needed(ValueId value) const { return may_be_needed_[value]; }

 private:
  std::vector<std::vector<ChainMode>> modes_;  // by node
  std::vector<bool> joins_;                    // by value
  std::vector<bool> may_leave_;
  std::vector<bool> may_be_needed_;
};

}  // namespace tensoropt
