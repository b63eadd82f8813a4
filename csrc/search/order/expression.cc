#include "search/order/expression.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/check.h"
#include "common/hash.h"

namespace tensoropt {

namespace {

// Frontiers are assumed to grow with the number of tables they were made of,
// up to this size.
constexpr double kMostPoints = 4096;

// The size of every label.
std::vector<double> label_dims(const Expression& left, const Expression& right,
                               const ProductLabels& labels) {
  std::vector<double> dims;
  const auto note = [&dims](int label, int dim) {
    if (label >= static_cast<int>(dims.size())) dims.resize(label + 1, 1);
    dims[label] = dim;
  };
  for (std::size_t i = 0; i < labels.left.size(); ++i) {
    note(labels.left[i], left.dims[i]);
  }
  for (std::size_t i = 0; i < labels.right.size(); ++i) {
    note(labels.right[i], right.dims[i]);
  }
  return dims;
}

double density(const Expression& expression) {
  return std::min(1.0, expression.cells / expression.volume);
}

}  // namespace

std::size_t ExpressionPool::HashKey::operator()(const Key& key) const {
  std::size_t hash = static_cast<std::size_t>(key.kind);
  hash = hash_combine(hash, std::hash<const void*>()(key.table));
  hash = hash_combine(hash, static_cast<std::size_t>(key.left));
  hash = hash_combine(hash, static_cast<std::size_t>(key.right));
  hash = hash_all(hash, key.labels.left);
  hash = hash_all(hash, key.labels.right);
  return hash_combine(hash, static_cast<std::size_t>(key.labels.num_outputs));
}

int ExpressionPool::find(const Key& key) const {
  const auto found = ids_.find(key);
  return found == ids_.end() ? -1 : found->second;
}

int ExpressionPool::add(const Key& key, Expression expression) {
  for (const int dim : expression.dims) {
    expression.volume = saturated(expression.volume * dim);
  }
  const int id = size();
  ids_.emplace(key, id);
  expressions_.push_back(std::move(expression));
  return id;
}

int ExpressionPool::unit(int num_configs) {
  const Key key{0, nullptr, num_configs, 0, {}};
  if (const int id = find(key); id >= 0) return id;
  Expression unit;
  unit.dims = {num_configs};
  unit.cells = num_configs;
  unit.single = true;
  return add(key, std::move(unit));
}

int ExpressionPool::node(const NodeTable& table, int domain) {
  const Key key{1, &table, domain, 0, {}};
  if (const int id = find(key); id >= 0) return id;
  const std::vector<int>& configs = domains_.configs_of(domain);
  Expression result;
  result.kind = Expression::Kind::kNode;
  result.node = &table;
  result.domains = {domain};
  if (configs.size() > 1) result.dims = {static_cast<int>(configs.size())};
  result.cells = static_cast<double>(configs.size());
  double choices = 0;
  for (const int c : configs) {
    choices += static_cast<double>(table.choices(c).size());
  }
  result.points_per_cell = choices / result.cells;
  result.single = choices == result.cells;
  return add(key, std::move(result));
}

int ExpressionPool::edge(const EdgeTable& table, int source_domain,
                         int target_domain) {
  const Key key{2, &table, source_domain, target_domain, {}};
  if (const int id = find(key); id >= 0) return id;
  Expression result;
  result.kind = Expression::Kind::kEdge;
  result.edge = &table;
  result.domains = {source_domain, target_domain};
  double dense = 1;
  for (const int domain : result.domains) {
    const int dim = static_cast<int>(domains_.configs_of(domain).size());
    if (dim > 1) result.dims.push_back(dim);
    dense *= dim;
  }
  const double all = static_cast<double>(table.num_sources()) *
                     static_cast<double>(table.num_targets());
  const double cells = static_cast<double>(table.num_cells());
  result.cells = std::max(1.0, dense * cells / all);
  result.points_per_cell = static_cast<double>(table.num_choices()) / cells;
  result.single = table.num_choices() == table.num_cells();
  return add(key, std::move(result));
}

int ExpressionPool::product(int left, int right, const ProductLabels& labels) {
  const Key key{3, nullptr, left, right, labels};
  if (const int id = find(key); id >= 0) return id;
  Expression result;
  result.kind = Expression::Kind::kProduct;
  result.left = left;
  result.right = right;
  result.labels = labels;
  estimate(result);
  return add(key, std::move(result));
}

void ExpressionPool::estimate(Expression& product) const {
  const Expression& left = expressions_[product.left];
  const Expression& right = expressions_[product.right];
  const auto dims = label_dims(left, right, product.labels);
  double all = 1;
  double outputs = 1;
  for (std::size_t label = 0; label < dims.size(); ++label) {
    all = saturated(all * dims[label]);
    if (static_cast<int>(label) >= product.labels.num_outputs) continue;
    outputs = saturated(outputs * dims[label]);
    product.dims.push_back(static_cast<int>(dims[label]));
  }
  const double terms = all * density(left) * density(right);
  product.cells = std::min(outputs, terms);
  product.points_per_cell =
      std::min(kMostPoints, left.points_per_cell + right.points_per_cell);
  product.work = terms * product.points_per_cell;
}

std::vector<int> reachable(const ExpressionPool& pool, int root) {
  std::vector<bool> needed(pool.size(), false);
  needed[root] = true;
  std::vector<int> result;
  // Operands have smaller ids than their product.
  for (int id = root; id >= 0; --id) {
    if (!needed[id]) continue;
    result.push_back(id);
    for (const int operand : {pool[id].left, pool[id].right}) {
      if (operand >= 0) needed[operand] = true;
    }
  }
  std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace tensoropt
