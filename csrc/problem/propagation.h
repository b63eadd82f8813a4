// Arc consistency: removes the configs that no neighbour can be combined with.
//
//   Propagation propagation(problem);
//   std::vector<ConfigMask> masks = propagation.all_configs();
//   propagation.run(masks);                          // from all edges
//   masks[n] = only(c); propagation.run_from(n, masks, &changes);
//
// A config stays if it has a choice and if every edge at its node has a cell
// between it and some config left at the other end. Sparse tables ('follow'
// edges) thus carry a decision along whole chains.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "problem/problem.h"

namespace tensoropt {

using ConfigMask = std::vector<bool>;

class Propagation {
 public:
  // A node whose mask changed, and its mask before.
  using Change = std::pair<Problem::NodeId, ConfigMask>;

  explicit Propagation(const Problem& problem);

  // The configs that have a choice, for every node.
  std::vector<ConfigMask> all_configs() const;
  // Returns a node that has no config left; none if all have one.
  Problem::NodeId run(std::vector<ConfigMask>& masks);
  // The same when only the mask of `node` became smaller. What changes is
  // appended to `changes`, to be undone in reverse order.
  Problem::NodeId run_from(Problem::NodeId node, std::vector<ConfigMask>& masks,
                           std::vector<Change>& changes);

 private:
  using Key = std::pair<const EdgeTable*, std::pair<ConfigMask, ConfigMask>>;

  void enqueue(Problem::EdgeId edge);
  Problem::NodeId drain(std::vector<ConfigMask>& masks,
                        std::vector<Change>* changes);

  const Problem& problem_;
  IndexedVector<Problem::NodeId, std::vector<Problem::EdgeId>> edges_of_;
  std::deque<Problem::EdgeId> queue_;
  std::vector<bool> waiting_;  // by edge
};

}  // namespace tensoropt
