// A probe of a problem: the best strategies under a few weighted sums of
// memory and time, and what every cell of every table costs at least.
//
//   WeightedProbe probe(graph, schedule, workers, depth);
//   probe.solve_between(epsilon, limits, 9);
//   probe.strategies();                        // on the hull of the frontier
//   probe.may_improve(id, cell, limits);       // see search_zones.h
//
// Strategies that are best for some weighting (supported ones) are the
// vertices of the convex hull of the frontier. They are found by the dichotomic
// scheme: two neighbours on the hull give the weighting under which they are
// equally good; the best strategy under it is one of them or lies between.
// Every weighting takes one min-plus pass inside and outside.
#pragma once

#include <cstdint>
#include <vector>

#include "common/workers.h"
#include "search/bounds/min_plus.h"
#include "search/bounds/pass_memory.h"
#include "search/bounds/search_zones.h"
#include "search/bounds/zone_limits.h"

namespace tensoropt {

// A strategy, as the point taken in the table of every term that stands for a
// table of the problem.
struct KnownStrategy {
  Point cost;
  std::vector<std::uint32_t> points;
};

// Those that no other one dominates, sorted by memory; of equals the first.
std::vector<KnownStrategy> pareto(std::vector<KnownStrategy> strategies);
std::vector<Point> pareto(std::vector<Point> costs);
// In their order.
std::vector<Point> known_costs(const std::vector<KnownStrategy>& strategies);

class WeightedProbe {
 public:
  // With kNearRoot only cells near the root have bounds: a third of the time.
  WeightedProbe(const MinPlusGraph& graph, const Schedule& schedule,
                Workers& workers, PassMemory& memory, Depth depth)
      : graph_(graph),
        schedule_(schedule),
        workers_(workers),
        memory_(memory),
        depth_(depth) {}

  // Finds the ends of the frontier, then, widest gaps first, what lies between
  // neighbours that differ by more than epsilon in memory and time, as far as
  // the limits ask for it, and `max_weightings` altogether.
  void solve_between(double epsilon, const MemoryLimits& limits,
                     std::size_t max_weightings);
  // Finds the fastest of all strategies with the least memory, and the other
  // way round.
  void solve_ends();
  // Finds the best strategies under these weightings, up to rounding.
  void solve(const std::vector<Weights>& weightings);
  // At most `most` weightings that are not solved yet and may rule out these
  // zones, which are in memory order.
  std::vector<Weights> weightings_for(const std::vector<Point>& zones,
                                      std::size_t most) const;

  // Sorted by memory, none dominated; none if there is no strategy. After
  // solve_between() the first has the least memory and the last the least time
  // of all.
  const std::vector<KnownStrategy>& strategies() const { return strategies_; }
  // The weightings that were solved, and the least cost of any strategy under
  // each; of the ends exactly, otherwise up to MinPlusGraph::rounding().
  const std::vector<Weights>& weights() const { return weights_; }
  const std::vector<double>& optima() const { return optima_; }

  bool tells_about(int id) const { return graph_.reaches(depth_, id); }
  // Whether a strategy through this cell of an expression that it tells about
  // may lie in a zone. `limits` must be over weights().
  bool may_improve(int id, std::size_t cell, const ZoneLimits& limits) const;
  // Estimated number of cells of all tables for which it may.
  std::int64_t estimate_alive(const ZoneLimits& limits) const;

 private:
  std::vector<Weights> next_weightings(double epsilon,
                                       const MemoryLimits& limits,
                                       std::size_t most) const;
  template <typename Value>
  void solve_as(const std::vector<Weights>& weightings);
  template <typename Value>
  KnownStrategy best_strategy(std::size_t w);

  const MinPlusGraph& graph_;
  const Schedule& schedule_;
  Workers& workers_;
  PassMemory& memory_;
  const Depth depth_;
  std::vector<KnownStrategy> strategies_;
  std::vector<Weights> weights_;
  std::vector<double> optima_;
  // By weighting, expression and cell: the least cost of a strategy.
  std::vector<std::vector<std::vector<float>>> costs_;
};

}  // namespace tensoropt
