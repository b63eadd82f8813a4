#include "pipeline/stage_choice.h"

#include "common/check.h"

namespace tensoropt {

namespace {

void check_choice(const StageChoice& choice, const PipelineShape& shape) {
  TO_CHECK(choice.stage >= 0 && choice.stage < shape.stages,
           "stage {} of {}: must be >= 0 and less", choice.stage, shape.stages);
  TO_CHECK(choice.first_cut >= 0 && choice.first_cut < choice.last_cut &&
               choice.last_cut <= shape.end,
           "a stage from cut {} to cut {}: the first must be >= 0, the last "
           "behind it and at most {}",
           choice.first_cut, choice.last_cut, shape.end);
  for (std::size_t i = 1; i < choice.points.size(); ++i) {
    TO_CHECK(choice.points[i - 1].memory < choice.points[i].memory &&
                 choice.points[i - 1].time > choice.points[i].time,
             "point {} of a stage's frontier is beaten by a neighbour", i);
  }
}

void check_shape(const PipelineShape& shape) {
  TO_CHECK(shape.stages >= 1, "stages = {}: must be >= 1", shape.stages);
  TO_CHECK(shape.micro_batches >= 1, "micro_batches = {}: must be >= 1",
           shape.micro_batches);
  TO_CHECK(shape.forward_share > 0 && shape.forward_share < 1,
           "forward_share = {}: must be > 0 and < 1", shape.forward_share);
  TO_CHECK(shape.memory_step >= 0, "memory_step = {}: must be >= 0",
           shape.memory_step);
  for (const double limit : shape.pick_limits) {
    TO_CHECK(limit >= 0, "pick_limits has {}: must be >= 0", limit);
  }
}

}  // namespace

void check(const std::vector<StageChoice>& choices,
           const PipelineShape& shape) {
  check_shape(shape);
  for (const StageChoice& choice : choices) check_choice(choice, shape);
}

StageTime stage_time(const StageChoice& choice, const PipelineShape& shape,
                     double seconds) {
  const double both = seconds / shape.micro_batches;
  return {both * shape.forward_share, both * (1 - shape.forward_share),
          choice.transfer_seconds};
}

}  // namespace tensoropt
