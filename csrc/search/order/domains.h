// The configs that each node can still take.
//
// A domain is a sorted list of configs. Domains are interned: equal lists have
// equal ids, so that identical nodes stay recognisable as identical. A config
// is in the domain of its node if it has a choice and if every edge has a cell
// between it and some config in the domain at the other end (arc consistency);
// the others cannot be part of any strategy.
#pragma once

#include <map>
#include <vector>

#include "problem/problem.h"

namespace tensoropt {

class Domains {
 public:
  // `fixed[n] >= 0` leaves only that config to node n; empty fixes nothing.
  Domains(const Problem& problem, const std::vector<int>& fixed);

  // A node that has no config left, or none. With such a node there is no
  // strategy, and the other domains mean nothing.
  Problem::NodeId empty_node() const { return empty_node_; }
  // Throws UserError, naming the node, if there is one.
  void check_not_empty() const;

  int num_nodes() const { return static_cast<int>(node_domain_.size()); }
  int id(int node) const { return node_domain_[node]; }
  int size(int node) const {
    return static_cast<int>(configs_of(id(node)).size());
  }
  // The configs of a domain, ascending.
  const std::vector<int>& configs_of(int id) const { return domains_[id]; }

 private:
  int intern(std::vector<int> configs);

  Problem::NodeId empty_node_;
  std::vector<int> node_domain_;
  std::vector<std::vector<int>> domains_;
  std::map<std::vector<int>, int> ids_;
};

}  // namespace tensoropt
