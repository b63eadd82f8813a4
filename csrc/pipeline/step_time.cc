#include "pipeline/step_time.h"

#include <algorithm>

namespace tensoropt {

namespace {

// While `others` forwards or backwards of the stage take their turn, each of
// `seconds`, what is on its way for `round_trip` seconds comes closer.
double wait(double round_trip, int others, double seconds) {
  return std::max(0.0, round_trip - others * seconds);
}

// Of the stage itself, from its first forward to its last backward.
double own_seconds(const StageTime& stage, int later, double round_trip,
                   int micro_batches) {
  const double both = stage.forward + stage.backward;
  const double work = micro_batches * both;
  if (micro_batches <= later + 1) {  // all forwards, then all backwards
    return work + wait(round_trip, micro_batches - 1, stage.forward);
  }
  const int in_flight = later + 1;
  const double paced = std::max(both, (both + round_trip) / in_flight);
  return work + (micro_batches - in_flight) * (paced - both) +
         wait(round_trip, later, stage.forward) +
         wait(round_trip, later, stage.backward);
}

}  // namespace

Rest with_stage(const StageTime& stage, int later, const Rest& rest,
                int micro_batches) {
  const double both = stage.forward + stage.backward;
  if (later == 0) return {both, micro_batches * both};
  const double beyond = rest.round_trip + stage.transfers;
  const double own = own_seconds(stage, later, beyond, micro_batches);
  return {beyond + both, std::max(own, both + stage.transfers + rest.step)};
}

double step_seconds(std::span<const StageTime> stages, int micro_batches) {
  Rest rest;
  int later = 0;
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
    rest = with_stage(*stage, later++, rest, micro_batches);
  }
  return rest.step;
}

}  // namespace tensoropt
