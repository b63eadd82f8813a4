// Seconds of a step of a pipeline in closed form: no more than its lists of
// actions take, and close to that (tests/stages/test_closed_form.py).
//
//   step_seconds({{1, 2, 0.1}, {1, 2, 0}}, 8);  // 27.4
//
//   Rest rest;                                  // the same, stage by stage
//   rest = with_stage({1, 2, 0}, 0, rest, 8);   // the last one
//   rest = with_stage({1, 2, 0.1}, 1, rest, 8);
//   rest.step;
//
// GPipe: all forwards run from stage to stage, then all backwards: both as long
// as the way of one micro-batch, and M - 1 times what the slowest stage takes.
//
// 1F1B: a stage with `later` stages behind it has n = min(M, later + 1) of M
// micro-batches in flight: the backward of a micro-batch comes a round trip
// after its forward, and the forward of the n-th one from there comes after
// that. So a stage takes at least its own work, with the first and the last
// round trip in between where they are longer than what else there is to do; or
// one round trip after the other, of every n-th micro-batch; or the transfers
// of all micro-batches, one after the other, and the way of the last one.
// The step is that of the stage with which it takes longest, begun when the
// stages before have done one forward and ended when they have done one
// backward. Exact for equal stages without transfers.
//
// The form grows with every time of a stage and of what is after it, and in
// proportion to all of them together. So stages that take within a factor of
// others give a step within that factor.
#pragma once

#include <span>

namespace tensoropt {

enum class PipelineSchedule { kOneForwardOneBackward, kGpipe };

// Seconds of one micro-batch.
struct StageTime {
  double forward = 0;
  double backward = 0;
  // Of what goes to the next stage, and of the gradients that come back.
  double transfers = 0;
};

// What is after a stage.
struct Rest {
  double round_trip = 0;  // of one micro-batch, through all of it and back
  double step = 0;        // of a pipeline that begins there
  // Of a micro-batch in any stage, where the step depends on that (GPipe).
  double slowest_forward = 0;
  double slowest_backward = 0;
};

// The rest that begins with a stage, which has so many `later` stages after it,
// those of `rest`. 0 <= later, 1 <= micro_batches.
Rest with_stage(
    const StageTime& stage, int later, const Rest& rest, int micro_batches,
    PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward);

// Of all stages, in their order; what the last one transfers does not count.
double step_seconds(
    std::span<const StageTime> stages, int micro_batches,
    PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward);

}  // namespace tensoropt
