// Frontier-Tracking search: the whole frontier of (memory, time) over all
// strategies of a problem.
//
//   SearchOptions options;
//   options.epsilon = 1e-3;
//   const SearchResult result = search(problem, options);
//   for (const Point& p : result.points()) print(p.memory, p.time);
//   const Strategy fastest = result.unroll(result.points().size() - 1);
//
// Implements section 4 of TensorOpt (Cai et al.): FT-LDP and, as a baseline,
// FT-Elimination; see schedule.h for the order of eliminations, expression.h
// for folding, product.h for the inner loop.
//
// The result depends neither on the number of threads nor, for epsilon = 0, on
// the order of eliminations. Costs are added as doubles: integers up to 2^53
// are exact.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "problem/frontier.h"
#include "problem/problem.h"
#include "problem/strategy.h"
#include "problem/told.h"
#include "search/order/heuristic.h"
#include "search/order/schedule.h"

namespace tensoropt {

class Solution;
struct SearchOptions {
  Algorithm algorithm = Algorithm::kLdp;
  // Relative error allowed: for every strategy S there is a point with memory
  // and time at most (1 + epsilon) times those of S. 0: exact.
  double epsilon = 0.0;
  // Only strategies of at most so many bytes are searched for.
  double memory_limit = std::numeric_limits<double>::infinity();
  // Limits in bytes at which the frontier will be picked from: the fastest
  // point within each takes at most (1 + epsilon) times the time of every
  // strategy within it, however close to the limit that is. `memory_limit` is
  // one of them.
  std::vector<double> pick_limits;
  // Whether nothing but that is promised: then fewer strategies are looked for,
  // and other points are what was met on the way.
  bool only_picks = false;
  // Costs of strategies of other problems, with which the result will be
  // united: what one of them stands for, within epsilon, is not searched for.
  std::vector<Point> others;
  int num_threads = 0;  // 0: all processors (cpu_count.h)
  // Used only where exact conditioning would cost more than the work below;
  // their results are united. Empty: least memory, least time and both alike.
  std::vector<Heuristic> heuristics;
  // In pairs of frontier points that exact conditioning could meet, as
  // estimated by the schedule. Most are never formed: 1e10 take a few seconds.
  double max_conditioning_work = 1e12;
  // Rule out with bounds what cannot improve on known strategies. Never changes
  // what is promised; off only to measure what it is worth.
  bool use_bounds = true;
  // With so many cells of tables, known strategies are recombined and configs
  // ruled out before the whole is searched. Never changes what is promised.
  std::int64_t many_cells = 5000;
};

struct SearchStats {
  double schedule_seconds = 0;  // finding the order of eliminations
  double bound_seconds = 0;     // finding known strategies and bounds
  double product_seconds = 0;   // computing frontiers
  int branch_eliminations = 0;  // as scheduled, repetitions included
  int node_eliminations = 0;
  int conditioned_eliminations = 0;
  int heuristic_eliminations = 0;
  int products_computed = 0;
  int products_reused = 0;        // by folding
  int rounds = 0;                 // searches, the last one complete
  double recombine_seconds = 0;   // of strategies that were found first
  int bound_passes = 0;           // weighted sums of memory and time
  std::int64_t cells = 0;         // of all tables
  std::int64_t cells_alive = 0;   // not ruled out by bounds
  std::int64_t pairs = 0;         // of frontiers that were met
  std::int64_t pairs_pruned = 0;  // by their bounds, before forming points
  std::int64_t largest_frontier = 0;
};

class SearchResult {
 public:
  // Sorted by memory ascending, time strictly descending. Empty if nothing
  // fits the memory limit.
  std::span<const Point> points() const { return points_; }
  // Cost O(nodes + edges).
  Strategy unroll(int point) const;

  // Whether all strategies were considered: false after a heuristic
  // elimination, and then no error bound is known.
  bool exact() const { return heuristics_.empty(); }
  // The bound that holds for the frontier returned, or for what is picked from
  // it (SearchOptions.only_picks); infinite if not exact().
  double epsilon() const { return epsilon_; }
  // The least memory of any strategy (considered), limit or not.
  double min_memory() const { return min_memory_; }
  // The least time of any strategy (considered), limit or not, as its costs add
  // up: what is told of it may be more.
  double min_time() const { return min_time_; }
  std::span<const Heuristic> heuristics_used() const { return heuristics_; }
  const SearchStats& stats() const { return stats_; }

  // The same with the times that are told of its points, and the bound that
  // holds for these; no strategy at all takes less than `least_s`.
  SearchResult told(const LeastStepTime& time_s, double least_s) const;

 private:
  friend class Search;
  struct Origin {
    int solution;
    std::size_t known;  // by number there
  };

  std::vector<Point> points_;
  std::vector<Origin> origins_;
  std::vector<std::shared_ptr<const Solution>> solutions_;
  std::vector<Heuristic> heuristics_;
  double epsilon_ = 0;
  double min_memory_ = 0;
  double min_time_ = 0;
  SearchStats stats_;
};

// Throws UserError if the problem or the options are not valid, or if there is
// no strategy at all.
SearchResult search(const Problem& problem, const SearchOptions& options);

// The same, but nothing if there is no strategy.
std::optional<SearchResult> search_if_any(const Problem& problem,
                                          const SearchOptions& options);

// The frontier over all choices when every node takes the given config, exact
// for epsilon = 0 and else as in SearchOptions. Throws UserError, naming the
// node or edge, if the configs are forbidden.
std::vector<Point> evaluate(const Problem& problem,
                            const std::vector<int>& config, double epsilon = 0);

}  // namespace tensoropt
