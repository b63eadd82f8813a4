#include "search/min_plus.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"
#include "search/budget.h"

namespace tensoropt {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// into[i] = min(into[i], offset + from[i])
void lower(double* into, const double* from, double offset, int count) {
  for (int i = 0; i < count; ++i) {
    const double value = offset + from[i];
    into[i] = value < into[i] ? value : into[i];
  }
}

std::vector<double> gather(const std::vector<double>& values,
                           const std::vector<std::uint32_t>& index) {
  std::vector<double> result(index.size());
  for (std::size_t i = 0; i < index.size(); ++i) result[i] = values[index[i]];
  return result;
}

// Blocks of rows x columns become columns x rows.
std::vector<double> transpose(const std::vector<double>& values, int batches,
                              int rows, int columns) {
  std::vector<double> result(values.size());
  const std::size_t block = static_cast<std::size_t>(rows) * columns;
  for (int h = 0; h < batches; ++h) {
    const double* from = values.data() + h * block;
    double* to = result.data() + h * block;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) {
        to[static_cast<std::size_t>(c) * rows + r] =
            from[static_cast<std::size_t>(r) * columns + c];
      }
    }
  }
  return result;
}

}  // namespace

MinPlusPlan::MinPlusPlan(const ExpressionPool& pool, int root,
                         const std::vector<Table>& tables)
    : pool_(pool),
      tables_(tables),
      order_(reachable(pool, root)),
      volumes_(pool.size(), 0),
      products_(pool.size()) {
  for (const int id : order_) {
    const Expression& expression = pool[id];
    volumes_[id] = 1;
    for (const int dim : expression.dims) volumes_[id] *= dim;
    if (expression.kind != Expression::Kind::kProduct) continue;
    const ProductLabels& labels = expression.labels;
    const DenseMatrix left = arrange_dense(
        pool[expression.left].dims,
        arrangement_of(labels.left, labels.right, labels.num_outputs));
    const DenseMatrix right = arrange_dense(
        pool[expression.right].dims,
        arrangement_of(labels.right, labels.left, labels.num_outputs));
    products_[id] = {.id = id,
                     .batches = left.batches,
                     .rows = left.rows,
                     .columns = right.rows,
                     .inner = left.columns,
                     .left = left.cells,
                     .right = right.cells};
  }
}

MinPlusPass::MinPlusPass(const MinPlusPlan& plan)
    : plan_(plan), inside_(plan.pool().size()), outside_(plan.pool().size()) {}

void MinPlusPass::load(int id) {
  const Table& table = plan_.table(id);
  for (std::size_t i = 0; i < table.num_cells(); ++i) {
    double least = kInfinity;
    for (std::uint32_t p = table.first[i]; p < table.first[i + 1]; ++p) {
      const Point point{table.points.memory[p], table.points.time[p]};
      least = std::min(least, weights_.of(point));
    }
    inside_[id][table.cells[i]] = least;
  }
}

void MinPlusPass::multiply(const MinPlusPlan::Product& product) {
  const Expression& expression = plan_.pool()[product.id];
  const auto left = gather(inside_[expression.left], product.left);
  const auto right = transpose(gather(inside_[expression.right], product.right),
                               product.batches, product.columns, product.inner);
  double* out = inside_[product.id].data();
  const double* terms = left.data();
  for (int row = 0; row < product.batches * product.rows; ++row) {
    const std::size_t batch = row / product.rows;
    const double* from = right.data() + batch * product.inner * product.columns;
    for (int x = 0; x < product.inner; ++x, ++terms) {
      if (*terms == kInfinity) continue;
      lower(out, from + static_cast<std::size_t>(x) * product.columns, *terms,
            product.columns);
    }
    out += product.columns;
  }
}

void MinPlusPass::run_inside(
    Weights weights, const std::vector<std::vector<std::uint64_t>>& alive) {
  weights_ = weights;
  for (const int id : plan_.order()) {
    inside_[id].assign(plan_.volume(id), kInfinity);
    if (plan_.product(id).id < 0) {
      load(id);
    } else {
      multiply(plan_.product(id));
    }
    if (alive.empty()) continue;
    for (std::size_t cell = 0; cell < inside_[id].size(); ++cell) {
      if (alive[id][cell] == 0) inside_[id][cell] = kInfinity;
    }
  }
}

void MinPlusPass::push_outside(const MinPlusPlan::Product& product) {
  const Expression& expression = plan_.pool()[product.id];
  const auto left = gather(inside_[expression.left], product.left);
  const auto right = gather(inside_[expression.right], product.right);
  std::vector<double> to_left(left.size(), kInfinity);
  std::vector<double> to_right(right.size(), kInfinity);
  const double* out = outside_[product.id].data();
  for (int row = 0; row < product.batches * product.rows; ++row) {
    const std::size_t left_at = static_cast<std::size_t>(row) * product.inner;
    std::size_t right_at = static_cast<std::size_t>(row / product.rows) *
                           product.columns * product.inner;
    for (int c = 0; c < product.columns; ++c, ++out) {
      if (*out != kInfinity) {
        lower(&to_left[left_at], &right[right_at], *out, product.inner);
        lower(&to_right[right_at], &left[left_at], *out, product.inner);
      }
      right_at += product.inner;
    }
  }
  const auto scatter = [](const std::vector<double>& from,
                          const std::vector<std::uint32_t>& index,
                          std::vector<double>& into) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      into[index[i]] = std::min(into[index[i]], from[i]);
    }
  };
  scatter(to_left, product.left, outside_[expression.left]);
  scatter(to_right, product.right, outside_[expression.right]);
}

void MinPlusPass::run_outside(double cutoff) {
  for (const int id : plan_.order()) {
    outside_[id].assign(plan_.volume(id), kInfinity);
  }
  outside_[plan_.root()].front() = 0;
  for (auto id = plan_.order().rbegin(); id != plan_.order().rend(); ++id) {
    for (std::size_t cell = 0; cell < outside_[*id].size(); ++cell) {
      double& value = outside_[*id][cell];
      if (!(value + inside_[*id][cell] < cutoff)) value = kInfinity;
    }
    if (plan_.product(*id).id >= 0) push_outside(plan_.product(*id));
  }
}

int MinPlusPass::best_inner(const MinPlusPlan::Product& product,
                            std::uint32_t cell) const {
  const Expression& expression = plan_.pool()[product.id];
  const Values& left = inside_[expression.left];
  const Values& right = inside_[expression.right];
  const std::size_t row = cell / product.columns;
  const std::size_t column =
      row / product.rows * product.columns + cell % product.columns;
  int best = 0;
  double least = kInfinity;
  for (int x = 0; x < product.inner; ++x) {
    const double value = left[product.left[row * product.inner + x]] +
                         right[product.right[column * product.inner + x]];
    if (value >= least) continue;
    least = value;
    best = x;
  }
  return best;
}

std::uint32_t MinPlusPass::best_point(int id, std::uint32_t cell) const {
  const Table& table = plan_.table(id);
  const auto found =
      std::lower_bound(table.cells.begin(), table.cells.end(), cell);
  const auto at = found - table.cells.begin();
  std::uint32_t best = table.first[at];
  double least = std::numeric_limits<double>::infinity();
  for (std::uint32_t p = table.first[at]; p < table.first[at + 1]; ++p) {
    const double value =
        weights_.of({table.points.memory[p], table.points.time[p]});
    if (value >= least) continue;
    least = value;
    best = p;
  }
  return best;
}

std::vector<std::uint32_t> MinPlusPass::trace(const Schedule& schedule) const {
  std::vector<std::uint32_t> points(schedule.terms.size(), 0);
  std::vector<std::pair<int, std::uint32_t>> open{{schedule.root, 0}};
  while (!open.empty()) {
    const auto [term_id, cell] = open.back();
    open.pop_back();
    const Term& term = schedule.terms[term_id];
    const MinPlusPlan::Product& product = plan_.product(term.expression);
    if (product.id < 0) {
      points[term_id] = best_point(term.expression, cell);
      continue;
    }
    const int x = best_inner(product, cell);
    const std::size_t row = cell / product.columns;
    const std::size_t column =
        row / product.rows * product.columns + cell % product.columns;
    open.emplace_back(term.left, product.left[row * product.inner + x]);
    open.emplace_back(term.right, product.right[column * product.inner + x]);
  }
  return points;
}

}  // namespace tensoropt
