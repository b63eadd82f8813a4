// What of the frontiers of stages may matter beside strategies that are known,
// before these frontiers are searched.
//
//   // Of less memory than a limit a strategy takes at least the time of the
//   // last point of less memory than that (search/supporting_lines.h).
//   const std::vector<std::vector<double>> longest =
//       longest_useful(least, shape, known);
//   longest[c][0];      // of choice c: with less memory than all that is known
//   longest[c][i + 1];  // with at least the memory of known[i]
//
// A stage that takes longer than that, with so much memory, makes each pipeline
// at least as slow as a known strategy of no more memory, even if the other
// stages take their least time. A step is longer with every time of a stage and
// in proportion to all of them together (step_time.h), so what is within a
// factor of such a stage leads to pipelines within that factor of the known
// strategy.
#pragma once

#include <vector>

#include "pipeline/stage_choice.h"

namespace tensoropt {

// By choice; seconds of a step, 0 where the stage is of no use. Choices have
// no points if they are no stage; `known` has none beaten, by ascending
// memory. Throws UserError for choices or a shape that cannot be.
std::vector<std::vector<double>> longest_useful(
    const std::vector<StageChoice>& least, const PipelineShape& shape,
    const std::vector<Point>& known);

}  // namespace tensoropt
