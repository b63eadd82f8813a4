// How long the host of a device needs for a step: it calls one operator after
// the other and does not wait for them. Where that takes longer than the device
// computes, the step takes so long.
//
//   const HostTime host(space, shape);
//   const double step_s = std::max(strategy.time, host.of(strategy));
//
// The larger of two sums is no sum, so the search knows nothing of it: it finds
// the frontier of what devices take, and the times of its points are told with
// this afterwards.
#pragma once

#include "cost/parts.h"
#include "problem/strategy.h"
#include "space/space.h"

namespace tensoropt {

class HostTime {
 public:
  // The space must outlive this object.
  HostTime(const StrategySpace& space, const StepShape& shape);

  // Whether it takes time at all beside what the device does.
  bool counts() const { return launch_s_ > 0; }
  // Seconds of a step: operators in forward and backward, again if they run
  // again, and reshards. O(nodes + edges).
  double of(const Strategy& strategy) const;
  // No strategy takes less: operators alone, each once.
  double least() const;

 private:
  double of_operators(const Strategy* strategy) const;
  double of_reshards(const Strategy& strategy) const;

  const StrategySpace& space_;
  const double micro_batches_;
  const double launch_s_;
};

}  // namespace tensoropt
