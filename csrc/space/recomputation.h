// Which operators may run again in backward, so that what they make need not be
// kept for it (recomputation, activation checkpointing).
//
//   Recomputation recomputation(graph, rules, may_repeat);
//   if (recomputation.may_run_again(node)) ...
//
// Operators that are joined by values of one use are a **chain**: what one of
// them needs, the one before it makes. A chain recomputes nothing, or
//
//   - all but products with weights and fused attention (selective),
//   - all that makes what backward needs inside the chain (full),
//   - also the value that leaves it, if its relay or the operator that it goes
//     to does not keep it.
//
// An operator runs again only if backward asks for what it makes, which is not
// so of the last ones of many chains. Where a pair of neighbours does what it
// does in one of these ways, a strategy may combine it with others; the first
// that runs again may always read a value that is kept.
//
// A value may be left to its chain unless it ends a **segment**: a few products
// in a row, behind which it is all that later operators have of earlier ones.
// So no more than one segment is recomputed at a time.
#pragma once

#include <functional>
#include <vector>

#include "ir/graph.h"
#include "rules/rule.h"

namespace tensoropt {

// Which pairs of neighbours are allowed, by whether each of them runs again.
class AllowedPairs {
 public:
  static AllowedPairs all() { return AllowedPairs(0b1111); }
  static AllowedPairs none() { return AllowedPairs(0); }

  void add(bool producer, bool consumer) { bits_ |= bit(producer, consumer); }
  bool has(bool producer, bool consumer) const {
    return (bits_ & bit(producer, consumer)) != 0;
  }
  auto operator<=>(const AllowedPairs&) const = default;

 private:
  explicit AllowedPairs(int bits) : bits_(bits) {}
  static int bit(bool producer, bool consumer) {
    return 1 << (2 * (producer ? 1 : 0) + (consumer ? 1 : 0));
  }

  int bits_;
};

class Recomputation {
 public:
  using Predicate = std::function<bool(const Node&)>;

  // Nothing is recomputed.
  explicit Recomputation(const Graph& graph);

  // `may_repeat`: running the operator twice does what running it once does.
  Recomputation(const Graph& graph, const RulesByNode& rules,
                const Predicate& may_repeat);

  bool may_run_again(NodeId node) const { return may_run_again_[node]; }

  // The pairs of the producer of a value and its only consumer.
  AllowedPairs pairs(ValueId value) const { return pairs_[value]; }

  // Whether the relay of a value may leave it to the chain that makes it.
  bool may_leave(ValueId value) const { return may_leave_[value]; }

  // Whether some consumer of the value may run again.
  bool may_be_needed(ValueId value) const { return may_be_needed_[value]; }

 private:
  IndexedVector<NodeId, bool> may_run_again_;
  IndexedVector<ValueId, AllowedPairs> pairs_;
  IndexedVector<ValueId, bool> may_leave_;
  IndexedVector<ValueId, bool> may_be_needed_;
};

}  // namespace tensoropt
