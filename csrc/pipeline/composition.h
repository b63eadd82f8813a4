// The frontier of pipelines from the frontiers of their stages.
//
//   const std::vector<Pipeline> found = compose(choices, {.stages = 2,
//       .micro_batches = 8, .end = 32, .memory_step = 0.005});
//   found.front().cost;       // the least memory of the worst stage
//   found.front().stages[1];  // the choice and the point of its second stage
//
// For a cap on memory, every stage takes its fastest strategy within it,
// whatever the other stages take: a step is longer with every time of a stage
// (step_time.h). What is left are the cuts, found from the last stage to the
// first by labels (round trip, step) of all that may follow a cut. Caps are the
// memories of the stages' points, one for those within `memory_step`: each
// pipeline that there is has one in the result that takes at most its time, and
// (1 + memory_step) of its memory. Each of `pick_limits` is a cap of its own.
#pragma once

#include <vector>

#include "pipeline/stage_choice.h"
#include "problem/frontier.h"

namespace tensoropt {

struct Pipeline {
  struct Stage {
    int choice;
    int point;
  };
  Point cost;  // memory of the worst stage, seconds of a step
  std::vector<Stage> stages;
};

// By ascending memory, none beaten. Empty if no choices reach from cut 0 to the
// end. Throws UserError for choices or a shape that cannot be.
std::vector<Pipeline> compose(const std::vector<StageChoice>& choices,
                              const PipelineShape& shape);

}  // namespace tensoropt
