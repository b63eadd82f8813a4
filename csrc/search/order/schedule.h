// Finds in which order the nodes are eliminated; looks at sizes, not at costs.
//
//   Domains domains(problem, {});
//   ExpressionPool pool(domains);
//   const Schedule schedule = make_schedule(problem, {}, pool);
//   // schedule.terms[schedule.root] is the total cost of all strategies.
//
// Greedy by estimated work, ties by position, so that repeated blocks of the
// graph are eliminated in the same order and fold. Cut nodes (see
// cut_nodes.h) wait until they are leaves; hubs wait until the end, which is
// conditioning on them. Several sets of hubs are tried and the cheapest
// schedule is taken; in a ring this decides between conditioning and doubling.
//
// A schedule in which some step is beyond all machines is given up there: it
// has no root, and its estimates are infinite.
//
// O(n^2) for n nodes of small degree, times the schedules tried.
#pragma once

#include <optional>
#include <vector>

#include "problem/problem.h"
#include "search/order/elimination.h"
#include "search/order/expression.h"

namespace tensoropt {

enum class Algorithm {
  kLdp,          // FT-LDP: keep cut nodes, walk along them
  kElimination,  // FT-Elimination: eliminate down to two nodes (baseline)
};

struct Schedule;

// What exact conditioning may cost, in the estimates of a schedule.
struct ConditioningBudget {
  double max_work = 0;
  double max_cells = 0;
  bool allows(const Schedule& schedule) const;
};

struct ScheduleOptions {
  Algorithm algorithm = Algorithm::kLdp;
  // Nodes to eliminate last; without them those are taken that save most work.
  std::optional<std::vector<int>> hubs = {};
  // A schedule that this does not allow is given up as soon as that is
  // sure.
  std::optional<ConditioningBudget> budget = {};
};

struct Schedule {
  std::vector<Term> terms;
  int root = -1;
  int num_left = 0;  // nodes that were left when it was given up

  std::vector<int> hubs;
  // Estimates, each expression counted once.
  double work = 0;
  double cells = 0;              // of all tables, empty ones included
  double conditioning_work = 0;  // of the steps over four or more nodes
  // Fewer nodes left, then less work.
  bool is_better_than(const Schedule& other) const {
    return num_left != other.num_left ? num_left < other.num_left
                                      : work < other.work;
  }
  int num_branch = 0;        // degree <= 1
  int num_node = 0;          // degree 2
  int num_conditioning = 0;  // higher degree
};

inline bool ConditioningBudget::allows(const Schedule& schedule) const {
  return schedule.conditioning_work == 0 ||
         (schedule.conditioning_work <= max_work &&
          schedule.cells <= max_cells);
}

// By term: the node that each axis of its expression stands for; -1 if it does
// not depend on any.
std::vector<std::vector<int>> scopes_of(const Schedule& schedule,
                                        const Problem& problem,
                                        const ExpressionPool& pool);

Schedule make_schedule(const Problem& problem, const ScheduleOptions& options,
                       ExpressionPool& pool);

}  // namespace tensoropt
