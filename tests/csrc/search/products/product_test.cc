// Products of tables, and the error that is shared out to them, against all
// combinations.

#include "search/products/product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "problem/checks.h"
#include "search/checks.h"
#include "search/products/budget.h"
#include "search/products/product_evaluator.h"
#include "search/scheduled.h"

namespace tensoropt::testing {
namespace {

const TableBounds kNoBounds;

// A table of any frontiers, some cells without one.
Table random_table(Dice& dice, std::vector<int> dims) {
  Table table;
  table.dims = std::move(dims);
  table.first.push_back(0);
  int volume = 1;
  for (const int size : table.dims) volume *= size;
  for (int cell = 0; cell < volume; ++cell) {
    if (dice.chance(25)) continue;
    FrontierBuilder builder;
    for (int i = dice.roll(1, 4); i > 0; --i) {
      const auto memory = static_cast<double>(dice.roll(0, 30));
      builder.add({memory, static_cast<double>(dice.roll(0, 30))}, 0, 0);
    }
    builder.move_to(table.points);
    table.cells.push_back(cell);
    table.first.push_back(static_cast<std::uint32_t>(table.points.size()));
  }
  return table;
}

using Index = std::vector<int>;
using Cells = std::map<Index, std::vector<Cost>>;

Cells cells_of(const Table& table) {
  Cells cells;
  for (std::size_t i = 0; i < table.num_cells(); ++i) {
    Index index(table.dims.size());
    std::uint32_t rest = table.cells[i];
    for (int axis = static_cast<int>(index.size()) - 1; axis >= 0; --axis) {
      index[axis] = static_cast<int>(rest % table.dims[axis]);
      rest /= table.dims[axis];
    }
    for (std::uint32_t p = table.first[i]; p < table.first[i + 1]; ++p) {
      cells[index].push_back({table.points.memory[p], table.points.time[p]});
    }
  }
  return cells;
}

// Every pair of cells that agree in all labels that both have.
Cells product_by_hand(const Table& left, const Table& right,
                      const ProductLabels& labels, double memory_limit) {
  Cells result;
  for (const auto& [l, left_costs] : cells_of(left)) {
    for (const auto& [r, right_costs] : cells_of(right)) {
      std::map<int, int> value;
      for (std::size_t i = 0; i < l.size(); ++i) value[labels.left[i]] = l[i];
      bool fits = true;
      for (std::size_t i = 0; i < r.size(); ++i) {
        fits = fits &&
               value.try_emplace(labels.right[i], r[i]).first->second == r[i];
      }
      if (!fits) continue;
      Index index;
      for (int out = 0; out < labels.num_outputs; ++out) {
        index.push_back(value.at(out));
      }
      for (const Cost& a : left_costs) {
        for (const Cost& b : right_costs) {
          const Cost sum{a.memory + b.memory, a.time + b.time};
          if (sum.memory <= memory_limit) result[index].push_back(sum);
        }
      }
    }
  }
  for (auto& [index, costs] : result) costs = pareto(std::move(costs));
  return result;
}

// The forms of expression.h, and one whose operands lie the other way round.
const std::vector<ProductLabels> kForms = {
    {{0, 1}, {1}, 1},          // a leaf
    {{0, 2}, {2, 1}, 2},       // a node between two
    {{2, 0}, {1, 2}, 2},       // the same, transposed
    {{0, 1}, {0, 1}, 2},       // parallel edges
    {{0, 1}, {1, 0}, 2},       // of which one goes back
    {{0, 1, 3}, {0, 3, 2}, 3}  // for each config of a hub
};

TEST(Product, EqualsAllPairsOfPoints) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    for (const ProductLabels& labels : kForms) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " +
                   std::to_string(labels.left.size()) + " axes");
      Dice dice(seed);
      std::map<int, int> size;
      for (const auto* side : {&labels.left, &labels.right}) {
        for (const int label : *side) size.try_emplace(label, dice.roll(1, 4));
      }
      const auto dims_of = [&](const std::vector<int>& side) {
        std::vector<int> dims;
        for (const int label : side) dims.push_back(size.at(label));
        return dims;
      };
      const Table left = random_table(dice, dims_of(labels.left));
      const Table right = random_table(dice, dims_of(labels.right));
      const double limit = dice.chance(50) ? 1e9 : dice.roll(10, 50);
      Workers workers(dice.roll(1, 3));
      ProductStats stats;
      const Table product =
          multiply({left, kNoBounds}, {right, kNoBounds}, labels, kNoBounds,
                   {{}, limit, kAllPoints, workers}, stats);
      EXPECT_EQ(cells_of(product), product_by_hand(left, right, labels, limit));
      EXPECT_FALSE(stats.thinned);
    }
  }
}

TEST(Product, PointsRememberWhatTheyAreMadeOf) {
  Dice dice(7);
  const ProductLabels labels = kForms[1];
  const Table left = random_table(dice, {3, 4});
  const Table right = random_table(dice, {4, 3});
  Workers workers(1);
  ProductStats stats;
  const Table product =
      multiply({left, kNoBounds}, {right, kNoBounds}, labels, kNoBounds,
               {{}, 1e9, kAllPoints, workers}, stats);
  ASSERT_GT(product.points.size(), 0u);
  for (std::uint32_t p = 0; p < product.points.size(); ++p) {
    const std::uint32_t l = product.points.left[p];
    const std::uint32_t r = product.points.right[p];
    EXPECT_EQ(product.points.memory[p],
              left.points.memory[l] + right.points.memory[r]);
    EXPECT_EQ(product.points.time[p],
              left.points.time[l] + right.points.time[r]);
    const std::uint32_t cell = product.index_of_point(p);
    EXPECT_EQ(cell / 3, left.index_of_point(l) / 4);
    EXPECT_EQ(cell % 3, right.index_of_point(r) % 3);
    EXPECT_EQ(left.index_of_point(l) % 4, right.index_of_point(r) / 3);
  }
}

// The product of 1 + delta on the dearest path down from an expression.
double dearest(const ExpressionPool& pool, const std::vector<double>& delta,
               int id) {
  double below = 1;
  for (const int operand : {pool[id].left, pool[id].right}) {
    if (operand >= 0) below = std::max(below, dearest(pool, delta, operand));
  }
  return below * (1 + delta[id]);
}

TEST(Budget, NoPathHasMoreThanTheWholeErrorAndSomeHaveAllOfIt) {
  const double epsilon = 0.1;
  int used = 0;
  for_random_problems(1, 8, {}, [&](const Problem& problem, Dice& dice) {
    const Scheduled scheduled(problem, dice);
    const auto delta = split_error(scheduled.pool, scheduled.root(), epsilon);
    const double most = dearest(scheduled.pool, delta, scheduled.root());
    EXPECT_LE(most, (1 + epsilon) * (1 + 1e-12));
    if (most > 1) {
      EXPECT_NEAR(most, 1 + epsilon, 1e-12);
      ++used;
    }
  });
  EXPECT_GT(used, 20);
}

TEST(Budget, WithoutErrorNothingIsThinned) {
  Dice dice(3);
  const Scheduled scheduled(random_problem(dice, {}, 5, ring(5)));
  const auto delta = split_error(scheduled.pool, scheduled.root(), 0);
  EXPECT_EQ(delta, std::vector<double>(scheduled.pool.size(), 0));
}

std::vector<Cost> costs_of(const std::vector<KnownStrategy>& strategies) {
  std::vector<Cost> costs;
  for (const auto& s : strategies) {
    costs.push_back({s.cost.memory, s.cost.time});
  }
  return costs;
}

TEST(ProductEvaluator, EqualsBruteForceWithinItsError) {
  const RandomTables how{.max_configs = 3, .density = 80, .cost_step = 100};
  bool thinned = false;
  for_random_problems(50, 4, how, [&](const Problem& problem, Dice& dice) {
    const Scheduled scheduled(problem, dice);
    const auto all = brute_force(problem);
    Workers workers(1);
    ProductEvaluator evaluator(scheduled.pool, scheduled.root(),
                               scheduled.tables, workers);
    evaluator.run(nullptr, {});
    EXPECT_EQ(costs_of(evaluator.strategies(scheduled.schedule)), all);
    EXPECT_EQ(evaluator.error(), 0);
    for (const bool keep_memory : {false, true}) {
      evaluator.run(nullptr, {.epsilon = 0.2, .keep_memory = keep_memory});
      const auto found = costs_of(evaluator.strategies(scheduled.schedule));
      EXPECT_LE(evaluator.error(), 0.2 + 1e-12);
      thinned = thinned || evaluator.error() > 0;
      expect_covers(found, all,
                    {keep_memory ? 0 : evaluator.error(), evaluator.error()});
      // What is found is made of choices that there are.
      expect_covers(all, found, Tolerance{});
    }
  });
  EXPECT_TRUE(thinned);
}

}  // namespace
}  // namespace tensoropt::testing
