#include "search/budget.h"

#include <algorithm>
#include <cmath>

namespace tensoropt {

namespace {

int thins(const Expression& expression) {
  return expression.kind == Expression::Kind::kProduct ? 1 : 0;
}

}  // namespace

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

std::vector<double> split_error(const ExpressionPool& pool, int root,
                                double epsilon) {
  std::vector<double> delta(pool.size(), 0);
  if (epsilon <= 0) return delta;
  const std::vector<int> order = reachable(pool, root);
  std::vector<int> below(pool.size(), 0);  // longest path up to here
  std::vector<int> above(pool.size(), 0);  // longest path from here on
  for (const int id : order) {
    for (const int operand : {pool[id].left, pool[id].right}) {
      if (operand >= 0) below[id] = std::max(below[id], below[operand]);
    }
    below[id] += thins(pool[id]);
  }
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    for (const int operand : {pool[*id].left, pool[*id].right}) {
      if (operand < 0) continue;
      above[operand] = std::max(above[operand], above[*id] + thins(pool[*id]));
    }
    if (thins(pool[*id]) == 0) continue;
    delta[*id] = std::expm1(std::log1p(epsilon) / (below[*id] + above[*id]));
  }
  return delta;
}

}  // namespace tensoropt
