// The strategies that were found for a problem, and the schedule and tables
// that say what they are.
//
//   Solution solution(problem, {}, {});
//   Stage stage(solution, {.thin_epsilon = 0.01});  // see stage.h
//   solution.unroll(0);
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "problem/problem.h"
#include "problem/strategy.h"
#include "search/bounds/weighted_probe.h"
#include "search/order/domains.h"
#include "search/order/expression.h"
#include "search/order/schedule.h"
#include "search/order/table.h"

namespace tensoropt {

class Solution {
 public:
  // `fixed[n] >= 0` gives node n that config; empty fixes nothing. Makes
  // the schedule; nothing is computed.
  Solution(const Problem& problem, const std::vector<int>& fixed,
           const ScheduleOptions& options);

  const Schedule& schedule() const { return schedule_; }
  const Problem& problem() const { return problem_; }
  const Domains& domains() const { return domains_; }
  const ExpressionPool& pool() const { return pool_; }
  int root() const { return schedule_.terms[schedule_.root].expression; }
  // False if the schedule was given up, see schedule.h: nothing can be
  // computed.
  bool has_schedule() const { return schedule_.root >= 0; }
  // Of all tables; very many without a schedule.
  std::int64_t num_cells() const;
  // Different products in the schedule.
  int num_products() const;

  // The tables of the problem, by expression.
  const std::vector<Table>& tables() const { return tables_; }
  // Throws UserError where one of the schedule is too large to be computed.
  void load_tables();

  // None dominated, sorted by memory.
  const std::vector<KnownStrategy>& known() const { return known_; }
  void add_known(std::vector<KnownStrategy> strategies);
  // By number in known().
  Strategy unroll(std::size_t number) const;

 private:
  const Problem problem_;  // keeps the tables alive
  const Domains domains_;
  ExpressionPool pool_;
  Schedule schedule_;
  std::vector<Table> tables_;
  std::vector<KnownStrategy> known_;
};

}  // namespace tensoropt
