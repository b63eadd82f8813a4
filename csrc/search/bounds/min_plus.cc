#include "search/bounds/min_plus.h"

#include <algorithm>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "common/check.h"
#include "search/bounds/min_plus_kernel.h"

namespace tensoropt {

namespace {

template <typename Value>
constexpr Value kInfinity = std::numeric_limits<Value>::infinity();
// Of a product near the root: a small part of what a whole pass takes.
constexpr double kQuickWork = 1e6;

template <typename Value>
Value bound_as(double cost) {
  if constexpr (std::is_same_v<Value, float>) {
    return bound_as_float(cost);
  } else {
    return cost;
  }
}

// The values in the order of the index; as they are if it is empty.
template <typename Value>
const Value* arranged(std::span<const Value> values,
                      const std::vector<std::uint32_t>& index,
                      std::vector<Value>& scratch) {
  if (index.empty()) return values.data();
  scratch.resize(index.size());
  for (std::size_t i = 0; i < index.size(); ++i) scratch[i] = values[index[i]];
  return scratch.data();
}

// from[rows][columns] the other way round.
template <typename Value>
void transpose(const Value* from, int rows, int columns, Value* into) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      into[static_cast<std::size_t>(c) * rows + r] = *from++;
    }
  }
}

}  // namespace

MinPlusGraph::MinPlusGraph(const ExpressionPool& pool, int root,
                           const std::vector<Table>& tables)
    : pool_(pool),
      tables_(tables),
      order_(reachable(pool, root)),
      offsets_(pool.size(), 0),
      products_(pool.size()) {
  for (const int id : order_) {
    offsets_[id] = total_volume_;
    total_volume_ += volume(id);
    if (pool[id].kind == Expression::Kind::kProduct) add_product(id);
  }
  find_near_root();
  find_rounding();
}

// A cost is rounded when it is loaded, in every product above its table, and,
// if it goes into the rest of another table, in every product down to that one.
void MinPlusGraph::find_rounding() {
  std::vector<int> height(pool_.size(), 0);
  for (const int id : order_) {
    if (products_[id].id < 0) continue;
    height[id] = 1 + std::max(height[pool_[id].left], height[pool_[id].right]);
  }
  const int roundings = 2 * height[root()] + 2;
  rounding_ = roundings * std::numeric_limits<float>::epsilon();
}

// The rest of an expression is known when all its products have pushed it down.
void MinPlusGraph::find_near_root() {
  std::vector<int> missing(pool_.size(), 0);
  for (const int id : order_) {
    if (products_[id].id < 0) continue;
    ++missing[pool_[id].left];
    ++missing[pool_[id].right];
  }
  near_root_.assign(pool_.size(), false);
  for (auto id = order_.rbegin(); id != order_.rend(); ++id) {
    near_root_[*id] = missing[*id] == 0;
    if (!pushes(Depth::kNearRoot, *id)) continue;
    --missing[pool_[*id].left];
    --missing[pool_[*id].right];
  }
}

bool MinPlusGraph::pushes(Depth depth, int id) const {
  return products_[id].id >= 0 && reaches(depth, id) &&
         (depth == Depth::kWhole || products_[id].work() <= kQuickWork);
}

void MinPlusGraph::add_product(int id) {
  const Expression& expression = pool_[id];
  const ProductLabels& labels = expression.labels;
  const Arrangement left =
      arrangement_of(labels.left, labels.right, labels.num_outputs);
  const Arrangement right =
      arrangement_of(labels.right, labels.left, labels.num_outputs);
  const std::vector<int>& left_dims = pool_[expression.left].dims;
  const std::vector<int>& right_dims = pool_[expression.right].dims;
  DenseMatrix by_row = arrange_dense(left_dims, left);
  DenseMatrix by_column = arrange_dense(right_dims, right);
  const bool right_is_wide = by_column.rows > 1;
  const Arrangement& wide = right_is_wide ? right : left;
  products_[id] = {
      .id = id,
      .batches = by_row.batches,
      .rows = by_row.rows,
      .columns = by_column.rows,
      .inner = by_row.columns,
      .left = std::move(by_row.cells),
      .right = std::move(by_column.cells),
      .by_inner = arrange_dense(right_is_wide ? right_dims : left_dims,
                                {wide.batch, wide.column, wide.row})
                      .cells};
  find_batch_last(products_[id]);
}

void MinPlusGraph::find_batch_last(Product& product) const {
  const Expression& expression = pool_[product.id];
  const ProductLabels& labels = expression.labels;
  const bool left_is_vector = product.rows == 1;
  const auto& vector = left_is_vector ? labels.left : labels.right;
  const auto& table = left_is_vector ? labels.right : labels.left;
  if (vector.size() != 2 || table.size() != 3) return;
  const int inner = vector.front();
  const int batch = vector.back();
  product.batch_last = inner >= labels.num_outputs &&
                       batch < labels.num_outputs && table.back() == batch;
  product.inner_first = table.front() == inner;
}

template <typename Value>
MinPlusPass<Value>::MinPlusPass(const MinPlusGraph& graph, PassMemory& memory)
    : graph_(graph),
      memory_(memory, 2 * graph.total_volume() * sizeof(Value)),
      inside_(reinterpret_cast<Value*>(memory_.data())),
      outside_(inside_ + graph.total_volume()),
      is_reached_(graph.pool().size(), false) {}

template <typename Value>
std::span<Value> MinPlusPass<Value>::fresh_inside(int id) {
  const std::span<Value> fresh = cells_of(inside_, id);
  std::fill(fresh.begin(), fresh.end(), kInfinity<Value>);
  return fresh;
}

template <typename Value>
void MinPlusPass<Value>::lower_outside(
    int id, const std::vector<Value>& costs,
    const std::vector<std::uint32_t>& index) {
  const std::span<Value> least = cells_of(outside_, id);
  if (!is_reached_[id]) {
    std::fill(least.begin(), least.end(), kInfinity<Value>);
    is_reached_[id] = true;
  }
  for (std::size_t i = 0; i < costs.size(); ++i) {
    Value& lowest = least[index.empty() ? i : index[i]];
    lowest = std::min(lowest, costs[i]);
  }
}

template <typename Value>
void MinPlusPass<Value>::load(int id) {
  const Table& table = graph_.table(id);
  const std::span<Value> costs = fresh_inside(id);
  for (std::size_t i = 0; i < table.num_cells(); ++i) {
    double least = kInfinity<double>;
    for (std::uint32_t p = table.first[i]; p < table.first[i + 1]; ++p) {
      const Point point{table.points.memory[p], table.points.time[p]};
      least = std::min(least, weights_.of(point));
    }
    costs[table.cells[i]] = bound_as<Value>(least);
  }
}

// One operand gives the terms, the other one, by inner config, whole lines to
// add them to: the right one, or the left one if the right one is a vector.
template <typename Value>
void MinPlusPass<Value>::multiply(const MinPlusGraph::Product& product) {
  if (product.batch_last) {
    multiply_batch_last(product);
    return;
  }
  const Expression& expression = graph_.pool()[product.id];
  const Values left = inside(expression.left);
  const Values right = inside(expression.right);
  const bool right_is_wide = product.columns > 1;
  const Value* terms = right_is_wide
                           ? arranged(left, product.left, scratch_[0])
                           : arranged(right, product.right, scratch_[0]);
  const Value* wide =
      arranged(right_is_wide ? right : left, product.by_inner, scratch_[1]);
  const MinPlusBlock block{right_is_wide ? product.rows : 1,
                           right_is_wide ? product.columns : product.rows,
                           product.inner};
  Value* out = fresh_inside(product.id).data();
  for (int h = 0; h < product.batches; ++h) {
    multiply_min_plus(terms, wide, out, block);
    terms += static_cast<std::size_t>(block.rows) * block.inner;
    wide += static_cast<std::size_t>(block.inner) * block.width;
    out += static_cast<std::size_t>(block.rows) * block.width;
  }
}

template <typename Value>
void MinPlusPass<Value>::multiply_batch_last(
    const MinPlusGraph::Product& product) {
  const Expression& expression = graph_.pool()[product.id];
  const bool left_is_vector = product.rows == 1;
  const Values left = inside(expression.left);
  const Values right = inside(expression.right);
  const Value* vector = (left_is_vector ? left : right).data();
  const Value* table = (left_is_vector ? right : left).data();
  const int lines = left_is_vector ? product.columns : product.rows;
  const int batches = product.batches;
  std::vector<Value>& by_line = scratch_[0];
  by_line.assign(static_cast<std::size_t>(lines) * batches, kInfinity<Value>);
  const int outer = product.inner_first ? product.inner : lines;
  const int middle = product.inner_first ? lines : product.inner;
  for (int i = 0; i < outer; ++i) {
    for (int j = 0; j < middle; ++j) {
      const int line = product.inner_first ? j : i;
      const int x = product.inner_first ? i : j;
      lower_sum(&by_line[static_cast<std::size_t>(line) * batches], table,
                vector + static_cast<std::size_t>(x) * batches, batches);
      table += batches;
    }
  }
  transpose(by_line.data(), lines, batches,
            cells_of(inside_, product.id).data());
}

template <typename Value>
void MinPlusPass<Value>::run_inside(Weights weights) {
  weights_ = weights;
  for (const int id : graph_.order()) {
    if (graph_.product(id).id < 0) {
      load(id);
    } else {
      multiply(graph_.product(id));
    }
  }
}

namespace {

template <typename Value>
struct From {
  const Value* left;
  const Value* right;
  const Value* out;
};

template <typename Value>
struct Into {
  Value* left;
  Value* right;
};

// The same without inner configs, for whole rows.
template <typename Value>
void push_join(const MinPlusGraph::Product& product, const From<Value>& from,
               const Into<Value>& into) {
  const int columns = product.columns;
  for (int row = 0; row < product.batches * product.rows; ++row) {
    const Value* out = from.out + static_cast<std::size_t>(row) * columns;
    const std::size_t right =
        static_cast<std::size_t>(row / product.rows) * columns;
    lower(into.right + right, out, from.left[row], columns);
    Value least = kInfinity<Value>;
    for (int c = 0; c < columns; ++c) {
      least = std::min(least, out[c] + from.right[right + c]);
    }
    into.left[row] = least;
  }
}

// The rest of each operand is the rest of the product times the other operand.
template <typename Value>
void push_products(const MinPlusGraph::Product& product, From<Value> from,
                   Into<Value> into) {
  const int rows = product.rows;
  const int columns = product.columns;
  const int inner = product.inner;
  std::vector<Value> by_column(static_cast<std::size_t>(rows) * columns);
  for (int h = 0; h < product.batches; ++h) {
    multiply_min_plus(from.out, from.right, into.left, {rows, inner, columns});
    transpose(from.out, rows, columns, by_column.data());
    multiply_min_plus(by_column.data(), from.left, into.right,
                      {columns, inner, rows});
    from.left += static_cast<std::size_t>(rows) * inner;
    into.left += static_cast<std::size_t>(rows) * inner;
    from.right += static_cast<std::size_t>(columns) * inner;
    into.right += static_cast<std::size_t>(columns) * inner;
    from.out += static_cast<std::size_t>(rows) * columns;
  }
}

}  // namespace

template <typename Value>
void MinPlusPass<Value>::push_outside(const MinPlusGraph::Product& product) {
  const Expression& expression = graph_.pool()[product.id];
  const Values left_values = inside(expression.left);
  const Values right_values = inside(expression.right);
  const Value* left = arranged(left_values, product.left, scratch_[0]);
  const Value* right = arranged(right_values, product.right, scratch_[1]);
  std::vector<Value>& to_left = scratch_[2];
  std::vector<Value>& to_right = scratch_[3];
  to_left.assign(left_values.size(), kInfinity<Value>);
  to_right.assign(right_values.size(), kInfinity<Value>);
  const From<Value> from{left, right, outside(product.id).data()};
  const Into<Value> into{to_left.data(), to_right.data()};
  if (product.inner == 1) {
    push_join(product, from, into);
  } else {
    push_products(product, from, into);
  }
  lower_outside(expression.left, to_left, product.left);
  lower_outside(expression.right, to_right, product.right);
}

template <typename Value>
void MinPlusPass<Value>::run_outside(Depth depth) {
  is_reached_.assign(is_reached_.size(), false);
  is_reached_[graph_.root()] = true;
  cells_of(outside_, graph_.root()).front() = 0;
  for (auto id = graph_.order().rbegin(); id != graph_.order().rend(); ++id) {
    if (graph_.pushes(depth, *id)) push_outside(graph_.product(*id));
  }
}

template <typename Value>
int MinPlusPass<Value>::best_inner(const MinPlusGraph::Product& product,
                                   std::uint32_t cell) const {
  const Expression& expression = graph_.pool()[product.id];
  const Values left = inside(expression.left);
  const Values right = inside(expression.right);
  const std::size_t row = cell / product.columns;
  const std::size_t column =
      row / product.rows * product.columns + cell % product.columns;
  int best = 0;
  Value least = kInfinity<Value>;
  for (int x = 0; x < product.inner; ++x) {
    const Value value =
        left[product.left_cell(row, x)] + right[product.right_cell(column, x)];
    if (value >= least) continue;
    least = value;
    best = x;
  }
  return best;
}

template <typename Value>
std::uint32_t MinPlusPass<Value>::best_point(int id, std::uint32_t cell) const {
  const Table& table = graph_.table(id);
  const auto found =
      std::lower_bound(table.cells.begin(), table.cells.end(), cell);
  const auto at = found - table.cells.begin();
  std::uint32_t best = table.first[at];
  double least = kInfinity<double>;
  for (std::uint32_t p = table.first[at]; p < table.first[at + 1]; ++p) {
    const double value =
        weights_.of({table.points.memory[p], table.points.time[p]});
    if (value >= least) continue;
    least = value;
    best = p;
  }
  return best;
}

template <typename Value>
std::vector<std::uint32_t> MinPlusPass<Value>::trace(
    const Schedule& schedule) const {
  std::vector<std::uint32_t> points(schedule.terms.size(), 0);
  std::vector<std::pair<int, std::uint32_t>> open{{schedule.root, 0}};
  while (!open.empty()) {
    const auto [term_id, cell] = open.back();
    open.pop_back();
    const Term& term = schedule.terms[term_id];
    const MinPlusGraph::Product& product = graph_.product(term.expression);
    if (product.id < 0) {
      points[term_id] = best_point(term.expression, cell);
      continue;
    }
    const int x = best_inner(product, cell);
    const std::size_t row = cell / product.columns;
    const std::size_t column =
        row / product.rows * product.columns + cell % product.columns;
    open.emplace_back(term.left, product.left_cell(row, x));
    open.emplace_back(term.right, product.right_cell(column, x));
  }
  return points;
}

template class MinPlusPass<float>;
template class MinPlusPass<double>;

}  // namespace tensoropt
