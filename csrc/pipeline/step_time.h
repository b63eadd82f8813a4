// Seconds of a step of a pipeline whose stages run one forward and one backward
// in turn (1F1B), in closed form.
//
//   step_seconds({{1, 2, 0.1}, {1, 2, 0}}, 8);  // 27.5
//
//   Rest rest;                                  // the same, stage by stage
//   rest = with_stage({1, 2, 0}, 0, rest, 8);   // the last one
//   rest = with_stage({1, 2, 0.1}, 1, rest, 8);
//   rest.step;
//
// A stage with `later` stages behind it has n = min(M, later + 1) of M
// micro-batches in flight. Besides its own work it waits while the first
// micro-batches are on their way to the last stage and back, while the last
// ones are, and in between if n of them take longer for the way than the stage
// for n micro-batches. The step is that of the stage with which it takes
// longest, begun when the stages before have done one forward and ended when
// they have done one backward. Exact for equal stages without transfers; in
// general close to what the lists of actions take
// (tests/stages/test_closed_form.py).
//
// The form grows with every time of a stage and of what is after it, and in
// proportion to all of them together. So stages that take within a factor of
// others give a step within that factor.
#pragma once

#include <span>

namespace tensoropt {

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
};

// The rest that begins with a stage, which has so many `later` stages after it,
// those of `rest`. 0 <= later, 1 <= micro_batches.
Rest with_stage(const StageTime& stage, int later, const Rest& rest,
                int micro_batches);

// Of all stages, in their order; what the last one transfers does not count.
double step_seconds(std::span<const StageTime> stages, int micro_batches);

}  // namespace tensoropt
