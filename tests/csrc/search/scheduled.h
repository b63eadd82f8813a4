// A problem with all that is needed to compute its tables, for tests of the
// parts of a search.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "problem/checks.h"
#include "problem/random_problem.h"
#include "search/order/domains.h"
#include "search/order/elimination.h"
#include "search/order/expression.h"
#include "search/order/schedule.h"
#include "search/order/table.h"

namespace tensoropt::testing {

// Eliminates the nodes in any order, which no search would take.
inline Schedule random_schedule(const Problem& problem, ExpressionPool& pool,
                                Dice& dice) {
  FactorGraph graph(problem, pool);
  while (graph.num_alive() > 0) {
    std::vector<int> alive;
    for (int n = 0; n < static_cast<int>(problem.nodes.size()); ++n) {
      if (graph.alive(n)) alive.push_back(n);
    }
    graph.eliminate(alive[dice.roll(0, static_cast<int>(alive.size()) - 1)]);
  }
  Schedule schedule;
  schedule.root = graph.finish();
  schedule.terms = graph.terms();
  return schedule;
}

struct Scheduled {
  explicit Scheduled(Problem p)
      : problem(std::move(p)),
        domains(problem, {}),
        pool(domains),
        schedule(make_schedule(problem, {}, pool)) {
    load_tables();
  }
  // In a random order.
  Scheduled(Problem p, Dice& dice)
      : problem(std::move(p)),
        domains(problem, {}),
        pool(domains),
        schedule(random_schedule(problem, pool, dice)) {
    load_tables();
  }
  int root() const { return schedule.terms[schedule.root].expression; }

  const Problem problem;
  const Domains domains;
  ExpressionPool pool;
  const Schedule schedule;
  std::vector<Table> tables;

 private:
  void load_tables() {
    tables.resize(pool.size());
    for (int id = 0; id < pool.size(); ++id) {
      if (pool[id].kind != Expression::Kind::kProduct) {
        tables[id] = load_table(pool[id], domains);
      }
    }
  }
};

// Runs check(scheduled, dice) on problems that have a strategy.
template <typename Check>
void for_scheduled(std::uint64_t first_seed, int count, Check&& check) {
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    Dice dice(seed);
    for (const Shape& shape : all_shapes(dice)) {
      SCOPED_TRACE(shape.name + ", seed " + std::to_string(seed));
      const Scheduled scheduled(
          random_problem(dice, {}, shape.num_nodes, shape.pairs));
      check(scheduled, dice);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace tensoropt::testing
