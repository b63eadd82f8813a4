// One weighted sum of memory and time instead of a frontier: a quick pass over
// all expressions that bounds what the full search has to look at.
//
//   const MinPlusGraph graph(pool, root, base_tables);
//   MinPlusPass<double> pass(graph);
//   pass.run_inside({.memory = 1, .time = 3e9});
//   const std::vector<std::uint32_t> best = pass.trace(schedule);
//   pass.run_outside(Depth::kWhole);
//   pass.inside(e)[cell] + pass.outside(e)[cell];  // the best strategy there
//
// Tables are dense arrays; absent cells are infinite. O(terms of all products),
// see min_plus_kernel.h. Floats are twice as fast and off by rounding().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "search/bounds/pass_memory.h"
#include "search/bounds/weights.h"
#include "search/order/expression.h"
#include "search/order/schedule.h"
#include "search/order/table.h"

namespace tensoropt {

// How far down from the root a pass looks at the rest of the problem: as far as
// it is quick, down to all expressions, or not at all.
enum class Depth { kNearRoot, kWhole, kNothing };

// What all passes over the same expressions share.
class MinPlusGraph {
 public:
  // `tables[id]` must be there for every table of the problem that `root` is
  // made of. All arguments must outlive the graph.
  MinPlusGraph(const ExpressionPool& pool, int root,
               const std::vector<Table>& tables);

  // A product as matrices: where the cells of the operands are, in the order
  // of left[batch][row][inner] and right[batch][column][inner]. Empty indices:
  // in this order already.
  struct Product {
    int id = -1;
    int batches = 1;
    int rows = 1;
    int columns = 1;
    int inner = 1;
    std::vector<std::uint32_t> left;
    std::vector<std::uint32_t> right;
    // right[batch][inner][column], or left[batch][inner][row] if there is only
    // one column.
    std::vector<std::uint32_t> by_inner;
    // One operand is a vector for each batch, and the batch is the last axis of
    // both: tables over the configs of a hub. They are read as they are.
    bool batch_last = false;
    bool inner_first = false;  // the other one's axes: inner, line, batch

    double work() const {
      return static_cast<double>(batches) * rows * columns * inner;
    }
    // `row` and `column` count over all batches.
    std::uint32_t left_cell(std::size_t row, int x) const {
      const std::size_t at = row * inner + x;
      return left.empty() ? static_cast<std::uint32_t>(at) : left[at];
    }
    std::uint32_t right_cell(std::size_t column, int x) const {
      const std::size_t at = column * inner + x;
      return right.empty() ? static_cast<std::uint32_t>(at) : right[at];
    }
  };

  const ExpressionPool& pool() const { return pool_; }
  const Table& table(int id) const { return tables_[id]; }
  std::size_t volume(int id) const {
    return static_cast<std::size_t>(pool_[id].volume);
  }
  // Where its cells begin in the tables of all expressions, one after the
  // other.
  std::size_t offset(int id) const { return offsets_[id]; }
  std::size_t total_volume() const { return total_volume_; }
  const std::vector<int>& order() const { return order_; }
  int root() const { return order_.back(); }
  // The relative error of sums of floats over the whole problem, at most.
  double rounding() const { return rounding_; }
  // Whether a pass with this depth knows the rest of the expression.
  bool reaches(Depth depth, int id) const {
    if (depth == Depth::kNothing) return false;
    return depth == Depth::kWhole || near_root_[id];
  }
  // Whether it pushes it down to the operands of the expression.
  bool pushes(Depth depth, int id) const;
  const Product& product(int id) const { return products_[id]; }

 private:
  void add_product(int id);
  void find_batch_last(Product& product) const;
  void find_near_root();
  void find_rounding();

  const ExpressionPool& pool_;
  const std::vector<Table>& tables_;
  std::vector<int> order_;
  std::vector<std::size_t> offsets_;  // by expression
  std::size_t total_volume_ = 0;
  std::vector<bool> near_root_;    // by expression
  std::vector<Product> products_;  // by expression
  double rounding_ = 0;
};

// Value: float or double.
template <typename Value>
class MinPlusPass {
 public:
  using Values = std::span<const Value>;

  MinPlusPass(const MinPlusGraph& graph, PassMemory& memory);

  // The least objective of every cell of every expression.
  void run_inside(Weights weights);
  // The least objective of the rest of the problem, over all places where the
  // expression stands; with kNearRoot only of expressions near the root,
  // nothing of the others.
  void run_outside(Depth depth);

  Values inside(int id) const { return cells_of(inside_, id); }
  Values outside(int id) const {
    return is_reached_[id] ? cells_of(outside_, id) : Values();
  }
  Value optimum() const { return inside(graph_.root()).front(); }

  // The point that the best strategy takes in the table of every term; only
  // those of tables of the problem are set.
  std::vector<std::uint32_t> trace(const Schedule& schedule) const;

 private:
  std::span<Value> cells_of(Value* tables, int id) const {
    return {tables + graph_.offset(id), graph_.volume(id)};
  }
  std::span<Value> fresh_inside(int id);
  void lower_outside(int id, const std::vector<Value>& costs,
                     const std::vector<std::uint32_t>& index);
  void load(int id);
  void multiply(const MinPlusGraph::Product& product);
  void multiply_batch_last(const MinPlusGraph::Product& product);
  void push_outside(const MinPlusGraph::Product& product);
  int best_inner(const MinPlusGraph::Product& product,
                 std::uint32_t cell) const;
  std::uint32_t best_point(int id, std::uint32_t cell) const;

  const MinPlusGraph& graph_;
  Weights weights_;
  const PassMemory::Block memory_;
  Value* const inside_;  // the tables of all expressions
  Value* const outside_;
  std::vector<bool> is_reached_;  // from outside, by expression
  std::vector<Value> scratch_[4];
};

}  // namespace tensoropt
