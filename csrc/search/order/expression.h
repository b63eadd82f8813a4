// Symbolic tables: what will be computed, before any cost is looked at.
//
// An expression stands for a table of frontiers over the configs of a few
// nodes (its axes). It is either a table of the problem or the product of two
// expressions, written as in einsum: every axis gets a label, `+` joins costs
// and the union over the configs of the summed-out labels keeps what no other
// choice dominates.
//
//   edge  product("ax, x -> a"): branch elimination of leaf x into a
//   edge  product("ax, xc -> ac"): node elimination of x
//   edge  product("ac, ac -> ac"): edge elimination (merging parallel edges)
//   edge  product("hax, hxc -> hac"): node elimination for each config of h
//
// Equal expressions get equal ids (hash consing). As the tables of repeated
// layers are shared, every later layer costs nothing: this is the folding of
// repeated structure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "problem/problem.h"
#include "search/order/domains.h"

namespace tensoropt {

// Estimates end here: products of many sizes are infinite otherwise, and what
// is infinite cannot be compared.
inline constexpr double kLargestEstimate = 1e100;
inline double saturated(double estimate) {
  return std::min(estimate, kLargestEstimate);
}

// Labels below `num_outputs` are the axes of the result, in order; the others
// are summed out. A label of one operand only must be an output.
struct ProductLabels {
  std::vector<int> left;
  std::vector<int> right;
  int num_outputs = 0;
  friend auto operator<=>(const ProductLabels&, const ProductLabels&) = default;
};

struct Expression {
  enum class Kind { kUnit, kNode, kEdge, kProduct };
  Kind kind = Kind::kUnit;
  // Of the problem's tables: where the choices are, and the domains of the
  // ends. An axis of one config is left out of `dims`.
  const NodeTable* node = nullptr;
  const EdgeTable* edge = nullptr;
  std::vector<int> domains;
  // Of products: the operands.
  int left = -1;
  int right = -1;
  ProductLabels labels;

  std::vector<int> dims;       // number of configs on each axis
  double volume = 1;           // number of cells, empty ones included
  double cells = 1;            // estimated number of non-empty cells
  double points_per_cell = 1;  // estimated
  double work = 0;             // estimated, of computing it from its operands
  // A table of the problem with one choice in every cell.
  bool single = false;
};

class ExpressionPool {
 public:
  explicit ExpressionPool(const Domains& domains) : domains_(domains) {}

  int size() const { return static_cast<int>(expressions_.size()); }
  const Expression& operator[](int id) const { return expressions_[id]; }
  const Domains& domains() const { return domains_; }

  int unit(int num_configs);
  int node(const NodeTable& table, int domain);
  int edge(const EdgeTable& table, int source_domain, int target_domain);
  int product(int left, int right, const ProductLabels& labels);

 private:
  struct Key {
    int kind = 0;
    const void* table = nullptr;
    int left = 0;
    int right = 0;
    ProductLabels labels = {};
    bool operator==(const Key&) const = default;
  };
  struct HashKey {
    std::size_t operator()(const Key& key) const;
  };

  // -1 if there is none.
  int find(const Key& key) const;
  int add(const Key& key, Expression expression);
  void estimate(Expression& product) const;

  const Domains& domains_;
  std::vector<Expression> expressions_;
  std::unordered_map<Key, int, HashKey> ids_;
};

// The expressions that `root` is made of, operands first.
std::vector<int> reachable(const ExpressionPool& pool, int root);

}  // namespace tensoropt
