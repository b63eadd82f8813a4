// Finds all that improves on the known strategies, in rounds.
//
// How much has to be looked at depends on how good the known strategies are: a
// wide gap between two of them leaves room for much that turns out useless. So
// as long as the bounds leave much, only strategies close to the hull of the
// frontier are looked for first: few cells need to be looked at, and many
// strategies are found, which narrows the gaps. The last round looks at all
// that is left, and is complete.
//
// Of only_picks what is left is what may be picked.
//
// Thinning may replace a strategy by one of slightly more memory, which a limit
// refuses. So at the limits where the frontier is picked from, the last round
// looks once more for what is faster and fits, thinning by time alone.
#pragma once

#include <cstdint>
#include <vector>

#include "common/workers.h"
#include "search/bounds/search_zones.h"
#include "search/bounds/weighted_probe.h"
#include "search/products/product_evaluator.h"

namespace tensoropt {

struct RoundOptions {
  double known_epsilon = 0;  // known strategies stand for others within this
  double thin_epsilon = 0;   // error that thinning may make in the last round
  MemoryLimits limits = {};
  std::size_t most_points = kAllPoints;  // see EvaluationOptions
  Workers& workers;
};

class RoundRunner {
 public:
  // `probe` has been solved already. Strategies of the costs `given` count as
  // known, sorted or not. The other arguments must outlive the search.
  RoundRunner(const MinPlusGraph& graph, const Schedule& schedule,
              const RoundOptions& options, const std::vector<Point>& given,
              const WeightedProbe& probe, ProductEvaluator& evaluator);

  void run();
  // The limits of all that may improve on known strategies, over the weightings
  // of the probe.
  ZoneLimits probe_limits() const;
  // In memory order, where better strategies than the known ones may be, as far
  // as the probe can say.
  std::vector<Point> open_zones() const;

  // Those of the probe and those found, none dominated, sorted by memory.
  const std::vector<KnownStrategy>& known() const { return known_; }
  // The relative error that thinning made.
  double error() const { return error_; }
  int num_rounds() const { return num_rounds_; }
  std::int64_t num_alive() const { return num_alive_; }  // in the last round
  double product_seconds() const { return product_seconds_; }

 private:
  // The zones of a round, and how close to the optima they are searched.
  struct Region {
    std::vector<Point> zones;
    std::vector<Weights> weights;
    std::vector<double> optima;
    double slack;
  };

  bool is_open(Point zone) const;
  bool are_others_better() const;
  Region region_of(const std::vector<Point>& zones) const;
  bool round(std::int64_t most_cells);
  ZoneLimits limits(const Region& region) const;
  ZoneLimits probe_limits(const Region& region) const;
  void search_all(Bounds& bounds, Region region,
                  const std::vector<Point>& zones);
  void search_within_limits(Bounds& bounds, Region region);
  void search_completely(Bounds& bounds, const Region& region,
                         const EvaluationOptions& options);
  void evaluate(const Bounds& bounds, const EvaluationOptions& options);
  void note_costs(const std::vector<KnownStrategy>& strategies);
  std::vector<double> known_optima(const std::vector<Weights>& weights) const;

  const MinPlusGraph& graph_;
  const Schedule& schedule_;
  const RoundOptions options_;
  const WeightedProbe& probe_;
  ProductEvaluator& evaluator_;
  std::vector<KnownStrategy> known_;
  std::vector<Point> costs_;  // of all known, none dominated, sorted by memory
  const std::int64_t first_cells_;
  double error_ = 0;
  int num_rounds_ = 0;
  std::int64_t num_alive_ = 0;
  double product_seconds_ = 0;
};

}  // namespace tensoropt
