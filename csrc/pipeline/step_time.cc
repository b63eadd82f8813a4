#include "pipeline/step_time.h"

#include <algorithm>

namespace tensoropt {

namespace {

// Of the stage itself, from its first forward to its last backward: the longest
// of several ways through what waits for what.
double own_seconds(const StageTime& stage, int later, double round_trip,
                   int micro_batches) {
  const int in_flight = std::min(micro_batches, later + 1);
  const double both = stage.forward + stage.backward;
  const double each = both + round_trip;  // of one micro-batch, alone
  const int last = micro_batches - 1;
  double longest = micro_batches * both;
  // The first micro-batch is alone, with backwards behind it; or the last one,
  // with forwards before it.
  longest = std::max(
      longest, each + (micro_batches - in_flight) * both +
                   (in_flight - 1) * std::max(stage.forward, stage.backward));
  // Several one after the other, the first and the last one among them, each of
  // which begins behind the one before by as many as are in flight, or more.
  const auto several = [&](int count) {
    return count * each + (last - (count - 1) * in_flight) * both;
  };
  if (last >= in_flight) {
    longest = std::max({longest, several(2), several(last / in_flight + 1)});
  }
  // Of the transfers both directions take half, or one takes more.
  return std::max(longest, each + last * stage.transfers / 2);
}

Rest with_stage_of_gpipe(const StageTime& stage, int later, const Rest& rest,
                         int micro_batches) {
  Rest all;
  all.round_trip = stage.forward + stage.backward;
  if (later > 0) all.round_trip += rest.round_trip + stage.transfers;
  all.slowest_forward = std::max(rest.slowest_forward, stage.forward);
  all.slowest_backward = std::max(rest.slowest_backward, stage.backward);
  if (later > 0) {
    // A link of which both directions take half of the transfers, or one more.
    all.slowest_forward = std::max(all.slowest_forward, stage.transfers / 2);
    all.slowest_backward = std::max(all.slowest_backward, stage.transfers / 2);
  }
  all.step = all.round_trip +
             (micro_batches - 1) * (all.slowest_forward + all.slowest_backward);
  return all;
}

}  // namespace

Rest with_stage(const StageTime& stage, int later, const Rest& rest,
                int micro_batches, PipelineSchedule schedule) {
  if (schedule == PipelineSchedule::kGpipe) {
    return with_stage_of_gpipe(stage, later, rest, micro_batches);
  }
  const double both = stage.forward + stage.backward;
  if (later == 0) return {both, micro_batches * both};
  const double beyond = rest.round_trip + stage.transfers;
  const double own = own_seconds(stage, later, beyond, micro_batches);
  return {beyond + both, std::max(own, both + stage.transfers + rest.step)};
}

double step_seconds(std::span<const StageTime> stages, int micro_batches,
                    PipelineSchedule schedule) {
  Rest rest;
  int later = 0;
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
    rest = with_stage(*stage, later++, rest, micro_batches, schedule);
  }
  return rest.step;
}

}  // namespace tensoropt
