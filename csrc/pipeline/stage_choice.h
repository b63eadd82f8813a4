// What stages may be, and of what pipeline.
//
//   const StageChoice choice{.stage = 1, .first_cut = 8, .last_cut = 16,
//       .points = {{4e9, 2.0}, {9e9, 1.5}}};
//   check({choice}, {.stages = 2, .micro_batches = 8, .end = 16});
#pragma once

#include <vector>

#include "pipeline/step_time.h"
#include "problem/frontier.h"

namespace tensoropt {

// What a stage may be: what lies between two cuts, in given layouts at both.
struct StageChoice {
  int stage = 0;  // which it is of the pipeline's
  // Cuts are numbered along the model, 0 where it begins.
  int first_cut = 0;
  int last_cut = 0;
  int first_layout = 0;
  int last_layout = 0;
  // Of one micro-batch at the last cut, and its gradients.
  double transfer_seconds = 0;
  // Memory of a device; seconds of a step with all micro-batches, alone.
  std::vector<Point> points;
};

struct PipelineShape {
  int stages = 1;
  int micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int end = 0;  // the cut where the model ends
  // The share of a stage's time that forwards take.
  double forward_share = 1.0 / 3;
  double memory_step = 0;
  // Memories at which the result will be picked from.
  std::vector<double> pick_limits = {};
};

// Throws UserError for choices or a shape that cannot be.
void check(const std::vector<StageChoice>& choices, const PipelineShape& shape);

// Of a micro-batch, if the choice takes these seconds of a step alone.
StageTime stage_time(const StageChoice& choice, const PipelineShape& shape,
                     double seconds);

}  // namespace tensoropt
