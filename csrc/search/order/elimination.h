// The graph being eliminated: tables (factors) over the nodes still there.
//
//   FactorGraph graph(problem, pool);
//   while (graph.num_alive() > 0) graph.eliminate(pick(graph));
//   const int root = graph.finish();  // the total cost, a single frontier
//
// Eliminating a node of degree 1 is the paper's branch elimination, of degree 2
// its node elimination. At a higher degree the result is a table over three or
// more nodes: the elimination is done once for each config of a hub that they
// share, which is conditioning on that hub, kept as local as possible. Tables
// over the same nodes are merged at once (edge elimination). Nodes of one
// config are no axis at all, so their edges fold into their neighbours.
//
// Nothing numeric happens here: the result is a tree of terms, one for every
// step, whose expressions are computed later, equal ones once.
#pragma once

#include <unordered_map>
#include <vector>

#include "common/hash.h"
#include "problem/problem.h"
#include "search/order/expression.h"

namespace tensoropt {

// One use of an expression. Different terms may share an expression, as the
// terms of two identical layers do.
struct Term {
  int expression = -1;
  int left = -1;  // terms of the operands of a product
  int right = -1;
  int slot = -1;  // the node or edge that a table of the problem stands at
};

class FactorGraph {
 public:
  FactorGraph(const Problem& problem, ExpressionPool& pool);

  int num_alive() const { return num_alive_; }
  bool alive(int node) const { return alive_[node]; }
  // Nodes that share a factor with this one, ascending.
  const std::vector<int>& neighbours(int node) const;
  // Estimated work of eliminating the node now.
  double work(int node) const;
  // The nodes whose neighbours or work may have changed since the last call,
  // each once.
  std::vector<int> take_changed();

  void eliminate(int node);
  // Joins what is left when no node is alive. Returns the root term.
  int finish();

  const std::vector<Term>& terms() const { return terms_; }

 private:
  struct Factor {
    int term = -1;
    std::vector<int> scope;  // one node for every axis of the expression
    int tables = 1;          // of the problem that it is made of
  };
  struct Cached {
    bool valid = false;
    std::vector<int> neighbours;
    double work = 0;
  };

  int add_term(Term term);
  void add_factor(Factor factor);
  Factor take_factor(int id);
  Factor multiply(const Factor& a, const Factor& b, int summed_node);
  void join_cheapest_pair(int node);
  double joint_volume(const Factor& a, const Factor& b) const;
  double dim(int node) const { return pool_.domains().size(node); }
  const Cached& cached(int node) const;
  void forget(int node);

  ExpressionPool& pool_;
  std::vector<Term> terms_;
  std::vector<Factor> factors_;
  std::vector<std::vector<int>> factors_of_;  // by node
  // By sorted scope.
  std::unordered_map<std::vector<int>, int, HashNumbers> factor_over_;
  std::vector<int> scalars_;  // terms without any axis
  std::vector<bool> alive_;
  int num_alive_ = 0;
  mutable std::vector<Cached> cached_;
  std::vector<int> changed_;
};

}  // namespace tensoropt
