#include "search/min_plus.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"
#include "search/budget.h"

namespace tensoropt {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void lower_anywhere(double* into, const double* from, double offset,
                    int count) {
  for (int i = 0; i < count; ++i) {
    const double value = offset + from[i];
    into[i] = value < into[i] ? value : into[i];
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2"))) void lower_avx2(double* into,
                                                const double* from,
                                                double offset, int count) {
  for (int i = 0; i < count; ++i) {
    const double value = offset + from[i];
    into[i] = value < into[i] ? value : into[i];
  }
}

bool has_avx2() { return __builtin_cpu_supports("avx2") != 0; }
#else
constexpr auto lower_avx2 = lower_anywhere;
bool has_avx2() { return false; }
#endif

// into[i] = min(into[i], offset + from[i])
const auto lower = has_avx2() ? lower_avx2 : lower_anywhere;

// The values in the order of the index; as they are if it is empty.
const double* arranged(const std::vector<double>& values,
                       const std::vector<std::uint32_t>& index,
                       std::vector<double>& scratch) {
  if (index.empty()) return values.data();
  scratch.resize(index.size());
  for (std::size_t i = 0; i < index.size(); ++i) scratch[i] = values[index[i]];
  return scratch.data();
}

void scatter_least(const std::vector<double>& from,
                   const std::vector<std::uint32_t>& index,
                   std::vector<double>& into) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    double& least = into[index.empty() ? i : index[i]];
    least = std::min(least, from[i]);
  }
}

// Blocks of rows x columns become columns x rows.
std::vector<std::uint32_t> transpose(const std::vector<std::uint32_t>& from,
                                     int batches, int rows, int columns) {
  std::vector<std::uint32_t> to;
  to.reserve(from.size());
  for (int h = 0; h < batches; ++h) {
    for (int c = 0; c < columns; ++c) {
      for (int r = 0; r < rows; ++r) {
        const std::size_t row = static_cast<std::size_t>(h) * rows + r;
        to.push_back(from[row * columns + c]);
      }
    }
  }
  return to;
}

std::vector<std::uint32_t> empty_if_identity(std::vector<std::uint32_t> index) {
  for (std::size_t i = 0; i < index.size(); ++i) {
    if (index[i] != i) return index;
  }
  return {};
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
    volumes_[id] = 1;
    for (const int dim : pool[id].dims) volumes_[id] *= dim;
    if (pool[id].kind == Expression::Kind::kProduct) add_product(id);
  }
}

void MinPlusPlan::add_product(int id) {
  const Expression& expression = pool_[id];
  const ProductLabels& labels = expression.labels;
  DenseMatrix left = arrange_dense(
      pool_[expression.left].dims,
      arrangement_of(labels.left, labels.right, labels.num_outputs));
  DenseMatrix right = arrange_dense(
      pool_[expression.right].dims,
      arrangement_of(labels.right, labels.left, labels.num_outputs));
  Product& product = products_[id];
  product = {.id = id,
             .batches = left.batches,
             .rows = left.rows,
             .columns = right.rows,
             .inner = left.columns,
             .left = {},
             .right = {},
             .by_inner = {}};
  const DenseMatrix& wide = product.columns > 1 ? right : left;
  product.by_inner = empty_if_identity(
      transpose(wide.cells, wide.batches, wide.rows, wide.columns));
  product.left = empty_if_identity(std::move(left.cells));
  product.right = empty_if_identity(std::move(right.cells));
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

// One operand gives the terms, the other one, by inner config, whole lines to
// add them to: the right one, or the left one if the right one is a vector.
void MinPlusPass::multiply(const MinPlusPlan::Product& product) {
  const Expression& expression = plan_.pool()[product.id];
  const Values& left = inside_[expression.left];
  const Values& right = inside_[expression.right];
  const bool right_is_wide = product.columns > 1;
  const double* terms = right_is_wide
                            ? arranged(left, product.left, scratch_[0])
                            : arranged(right, product.right, scratch_[0]);
  const double* wide =
      arranged(right_is_wide ? right : left, product.by_inner, scratch_[1]);
  const int rows = right_is_wide ? product.rows : 1;
  const int width = right_is_wide ? product.columns : product.rows;
  double* out = inside_[product.id].data();
  for (int h = 0; h < product.batches; ++h) {
    for (int row = 0; row < rows; ++row, out += width) {
      for (int x = 0; x < product.inner; ++x, ++terms) {
        if (*terms == kInfinity) continue;
        lower(out, wide + static_cast<std::size_t>(x) * width, *terms, width);
      }
    }
    wide += static_cast<std::size_t>(product.inner) * width;
  }
}

void MinPlusPass::run_inside(Weights weights) {
  weights_ = weights;
  for (const int id : plan_.order()) {
    inside_[id].assign(plan_.volume(id), kInfinity);
    if (plan_.product(id).id < 0) {
      load(id);
    } else {
      multiply(plan_.product(id));
    }
  }
}

void MinPlusPass::push_outside(const MinPlusPlan::Product& product) {
  const Expression& expression = plan_.pool()[product.id];
  const Values& left_values = inside_[expression.left];
  const Values& right_values = inside_[expression.right];
  const double* left = arranged(left_values, product.left, scratch_[0]);
  const double* right = arranged(right_values, product.right, scratch_[1]);
  std::vector<double>& to_left = scratch_[2];
  std::vector<double>& to_right = scratch_[3];
  to_left.assign(left_values.size(), kInfinity);
  to_right.assign(right_values.size(), kInfinity);
  const double* out = outside_[product.id].data();
  for (int row = 0; row < product.batches * product.rows; ++row) {
    const std::size_t left_at = static_cast<std::size_t>(row) * product.inner;
    std::size_t right_at = static_cast<std::size_t>(row / product.rows) *
                           product.columns * product.inner;
    for (int c = 0; c < product.columns; ++c, ++out) {
      if (*out != kInfinity) {
        lower(&to_left[left_at], right + right_at, *out, product.inner);
        lower(&to_right[right_at], left + left_at, *out, product.inner);
      }
      right_at += product.inner;
    }
  }
  scatter_least(to_left, product.left, outside_[expression.left]);
  scatter_least(to_right, product.right, outside_[expression.right]);
}

void MinPlusPass::run_outside() {
  for (const int id : plan_.order()) {
    outside_[id].assign(plan_.volume(id), kInfinity);
  }
  outside_[plan_.root()].front() = 0;
  for (auto id = plan_.order().rbegin(); id != plan_.order().rend(); ++id) {
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
    const double value =
        left[product.left_cell(row, x)] + right[product.right_cell(column, x)];
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
    open.emplace_back(term.left, product.left_cell(row, x));
    open.emplace_back(term.right, product.right_cell(column, x));
  }
  return points;
}

}  // namespace tensoropt
