// Finds the strategies of a Solution: from symbolic expressions to a frontier.
//
//   Stage stage(solution, {.thin_epsilon = 0.01});
//   stage.probe();          // the best strategies under some weightings
//   stage.search(given);   // all that improves on them and on `given`
//
// Tables of costs and bounds live as long as the stage, what was found is kept
// in the solution. See weighted_probe.h and round_runner.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/workers.h"
#include "problem/propagation.h"
#include "search/bounds/min_plus.h"
#include "search/bounds/pass_memory.h"
#include "search/bounds/search_zones.h"
#include "search/bounds/weighted_probe.h"
#include "search/products/product_evaluator.h"
#include "search/round_runner.h"
#include "search/solution.h"

namespace tensoropt {

struct StageOptions {
  // Relative errors: known strategies stand for others within the first, the
  // products of frontiers are thinned by the second.
  double known_epsilon = 0;
  double thin_epsilon = 0;
  MemoryLimits limits = {};
  bool use_bounds = true;
  // No frontier of a cell has more points. With fewer than all the error has no
  // bound.
  std::size_t most_points = kAllPoints;
  Workers& workers;
  PassMemory& memory;
};

struct StageStats {
  double bound_seconds = 0;
  double product_seconds = 0;
  int passes = 0;                // of the probe
  int rounds = 0;                // of the search for more
  std::int64_t cells_alive = 0;  // in the last round
  int products = 0;
  ProductStats product;
};

class Stage {
 public:
  // The solution must outlive the stage.
  Stage(Solution& solution, const StageOptions& options);

  // Finds the best strategies under a few weightings, which suit `given`, the
  // costs of others; none if there are none at all.
  void probe(const std::vector<Point>& given, std::size_t max_weightings,
             Depth depth);

  // By node of the solution's problem: the configs of strategies that may
  // improve on `given` and on those of the probe, as far down as the probe
  // went. Nothing if there are no such strategies; then there is nothing to
  // search either.
  std::optional<std::vector<ConfigMask>> promising(
      const std::vector<Point>& given);

  // Finds what improves on the strategies of the probe and on `given`: all
  // together, they are within error() of every strategy, and within the limits
  // of every strategy in time alone; of only_picks the last alone. The probe
  // was whole.
  void search(const std::vector<Point>& given);

  // Relative; at most both errors of the options together.
  double error() const { return error_; }
  const StageStats& stats() const { return stats_; }

 private:
  void probe_zones(const std::vector<Point>& given);
  void search_bounded(const std::vector<Point>& given);
  void search_unbounded();
  RoundRunner round_runner(const std::vector<Point>& given);
  ConfigMask promising(int expression, std::size_t axis,
                       const ZoneLimits& limits) const;

  Solution& solution_;
  const StageOptions options_;
  MinPlusGraph graph_;
  std::optional<WeightedProbe> probe_;
  ProductEvaluator evaluator_;
  double error_ = 0;
  StageStats stats_;
};

}  // namespace tensoropt
