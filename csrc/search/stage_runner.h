// Searches a problem in stages, each with more known strategies and fewer
// configs than the one before.
//
//   StageRunner search({}, {.thin_epsilon = 0.01}, many_cells, {});
//   search.run(std::make_shared<Solution>(problem, fixed, schedule_options));
//   search.solutions();   // what was found, all of it together
//
// Large problems are not searched as they are. Known strategies, the best under
// some weightings, share most of their configs, and combining the parts of some
// with the parts of others gives most of what the frontier needs: the
// **recombination** is the search of the small problem in which every node may
// take the configs that it takes in some known strategy. What is known then
// rules out configs, of hubs above all, and the rest is a smaller problem: the
// next stage. The last stage is searched as a whole, so that the bound holds
// for all strategies.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "problem/propagation.h"
#include "search/order/schedule.h"
#include "search/solution.h"
#include "search/stage.h"

namespace tensoropt {

class StageRunner {
 public:
  // A strategy that a stage looked at.
  struct Probed {
    Point cost;
    std::vector<int> config;  // by node
  };

  // Problems with fewer than `many_cells` cells of tables have one stage. What
  // strategies of other problems match, those of the costs `others`, is not
  // looked for.
  StageRunner(const ScheduleOptions& schedule, const StageOptions& options,
              std::int64_t many_cells, const std::vector<Point>& others)
      : schedule_options_(schedule),
        options_(options),
        many_cells_(many_cells),
        others_(others),
        costs_(others) {}

  void run(std::shared_ptr<Solution> solution);

  // None if there is no strategy.
  const std::vector<std::shared_ptr<const Solution>>& solutions() const {
    return solutions_;
  }
  // Relative, of all solutions together.
  double error() const { return error_; }
  // Sums over all stages.
  const StageStats& stats() const { return stats_; }
  double recombine_seconds() const { return recombine_seconds_; }

 private:
  // Whether the stage is over, and what comes next, if anything does.
  struct Outcome {
    bool over;
    std::shared_ptr<Solution> next;
  };

  std::shared_ptr<Solution> narrow(Solution& solution, Stage& stage);
  Outcome rule_out(const Solution& solution, Stage& stage);
  std::shared_ptr<Solution> next_stage(
      const Solution& now, const std::vector<ConfigMask>& promising) const;
  void search(Solution& solution, Stage& stage);
  void recombine();
  void recombine(std::span<const Probed> strategies);
  std::shared_ptr<Solution> recombination(
      const Solution& whole, const std::vector<ConfigMask>& masks) const;
  void search_recombination(const std::shared_ptr<Solution>& mixed);
  void gather(const Solution& solution);
  void note(const Stage& stage);

  const ScheduleOptions schedule_options_;
  const StageOptions options_;
  const std::int64_t many_cells_;
  const std::vector<Point> others_;
  std::vector<std::shared_ptr<const Solution>> solutions_;
  std::vector<Point> costs_;    // of these and all found, none dominated
  std::vector<Probed> probed_;  // different ones
  std::vector<std::vector<ConfigMask>> recombined_;
  double error_ = 0;
  StageStats stats_;
  double recombine_seconds_ = 0;
};

}  // namespace tensoropt
