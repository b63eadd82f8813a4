#include "search/products/budget.h"

#include <algorithm>
#include <cmath>

namespace tensoropt {

namespace {

// Adding one choice to every point of a frontier makes no more of them.
bool grows(const ExpressionPool& pool, const Expression& expression) {
  if (expression.kind != Expression::Kind::kProduct) return false;
  const ProductLabels& labels = expression.labels;
  const auto is_output = [&](int label) { return label < labels.num_outputs; };
  return !std::all_of(labels.left.begin(), labels.left.end(), is_output) ||
         !(pool[expression.left].single || pool[expression.right].single);
}

}  // namespace

std::vector<double> split_error(const ExpressionPool& pool, int root,
                                double epsilon) {
  std::vector<double> delta(pool.size(), 0);
  if (epsilon <= 0) return delta;
  const std::vector<int> order = reachable(pool, root);
  std::vector<int> thins(pool.size(), 0);
  std::vector<int> below(pool.size(), 0);  // longest path up to here
  std::vector<int> above(pool.size(), 0);  // longest path from here on
  for (const int id : order) {
    for (const int operand : {pool[id].left, pool[id].right}) {
      if (operand >= 0) below[id] = std::max(below[id], below[operand]);
    }
    thins[id] = grows(pool, pool[id]) ? 1 : 0;
    below[id] += thins[id];
  }
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    for (const int operand : {pool[*id].left, pool[*id].right}) {
      if (operand < 0) continue;
      above[operand] = std::max(above[operand], above[*id] + thins[*id]);
    }
    if (thins[*id] == 0) continue;
    delta[*id] = std::expm1(std::log1p(epsilon) / (below[*id] + above[*id]));
  }
  return delta;
}

}  // namespace tensoropt
