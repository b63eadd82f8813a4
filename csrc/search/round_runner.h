// Finds all that improves on the known strategies, in rounds.
//
// How much has to be looked at depends on how good the known strategies are: a
// wide gap between two of them leaves room for much that turns out useless. So
// as long as the bounds leave much, only strategies close to the hull of the
// frontier are looked for first: few cells need to be looked at, and many
// strategies are found, which narrows the gaps. The last round looks at all
// that is left, and is complete.
#pragma once

#include <cstdint>
#include <vector>

#include "search/bounds/weighted_probe.h"
#include "search/products/product_evaluator.h"

namespace tensoropt {

struct CornerSearchOptions {
  double known_epsilon = 0;  // known strategies stand for others within this
  double thin_epsilon = 0;   // error that thinning may make in the last round
  double memory_limit = 0;
  int num_threads = 1;
};

class CornerSearch {
 public:
  // `look` has been asked already. Strategies of the costs `given` count as
  // known, sorted or not. The other arguments must outlive the search.
  CornerSearch(const MinPlusPlan& plan, const Schedule& schedule,
               const CornerSearchOptions& options,
               const std::vector<Point>& given, FirstLook& look,
               Evaluation& evaluation);

  void run();
  // The limits of all that may improve on known strategies, over the weightings
  // of the first look.
  CornerLimits look_limits() const;

  // Those of the first look and those found, none dominated, sorted by memory.
  const std::vector<KnownStrategy>& known() const { return known_; }
  // The relative error that thinning made.
  double error() const { return error_; }
  int num_rounds() const { return num_rounds_; }
  std::int64_t num_alive() const { return num_alive_; }  // in the last round
  double product_seconds() const { return product_seconds_; }

 private:
  // The corners of this round, and where they are looked at.
  struct Aim {
    std::vector<Point> corners;
    std::vector<Weights> weights;
    std::vector<double> optima;
    double slack;
  };

  std::vector<Point> open_corners() const;
  Aim aim_at(const std::vector<Point>& corners) const;
  bool round(std::int64_t most_cells);
  CornerLimits limits(const Aim& aim) const;
  CornerLimits first_limits(const Aim& aim) const;
  void ask_at(const Aim& aim);
  void search_all(Bounds& bounds, Aim aim, const std::vector<Point>& corners);
  void evaluate(const Bounds& bounds, double epsilon);
  void note_costs(const std::vector<KnownStrategy>& strategies);
  std::vector<double> known_optima(const std::vector<Weights>& weights) const;

  const MinPlusPlan& plan_;
  const Schedule& schedule_;
  const CornerSearchOptions options_;
  FirstLook& look_;
  Evaluation& evaluation_;
  std::vector<KnownStrategy> known_;
  std::vector<Point> costs_;  // of all known, none dominated, sorted by memory
  const std::int64_t first_cells_;
  double error_ = 0;
  int num_rounds_ = 0;
  std::int64_t num_alive_ = 0;
  double product_seconds_ = 0;
};

}  // namespace tensoropt
