#include "pipeline/step_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tensoropt {
namespace {

std::vector<StageTime> random_stages(std::mt19937& generator) {
  std::uniform_int_distribution<int> count(1, 6);
  std::uniform_real_distribution<double> seconds(0.2, 2), transfer(0, 0.4);
  std::vector<StageTime> stages(count(generator));
  for (StageTime& stage : stages) {
    stage = {seconds(generator), seconds(generator), transfer(generator)};
  }
  stages.back().transfers = 0;
  return stages;
}

TEST(StepTime, OfEqualStagesIsThatOfTheKnownFormula) {
  for (const int stages : {1, 2, 3, 5, 8}) {
    for (const int micro_batches : {1, 2, 3, 4, 7, 8, 20}) {
      const std::vector<StageTime> equal(stages, {1, 2, 0});
      EXPECT_DOUBLE_EQ(step_seconds(equal, micro_batches),
                       3.0 * (micro_batches + stages - 1))
          << stages << " stages, " << micro_batches << " micro-batches";
    }
  }
}

TEST(StepTime, OfOneMicroBatchIsItsWayThroughAllStagesAndBack) {
  std::mt19937 generator(1);
  for (int i = 0; i < 100; ++i) {
    const std::vector<StageTime> stages = random_stages(generator);
    double way = 0;
    for (const StageTime& stage : stages) {
      way += stage.forward + stage.backward + stage.transfers;
    }
    EXPECT_NEAR(step_seconds(stages, 1), way, 1e-12);
  }
}

TEST(StepTime, IsNoLessThanTheWorkOfAStageAndTheWayToIt) {
  std::mt19937 generator(2);
  for (int i = 0; i < 200; ++i) {
    const std::vector<StageTime> stages = random_stages(generator);
    for (const int micro_batches : {1, 2, 5, 16}) {
      double way = 0;
      for (const StageTime& stage : stages) {
        const double both = stage.forward + stage.backward;
        EXPECT_GE(step_seconds(stages, micro_batches) + 1e-12,
                  way + micro_batches * both);
        way += both + stage.transfers;
      }
    }
  }
}

// What the bound of a composition rests on.
TEST(StepTime, GrowsWithEveryTimeAndInProportionToAll) {
  std::mt19937 generator(3);
  std::uniform_real_distribution<double> more(0, 1);
  for (int i = 0; i < 500; ++i) {
    const std::vector<StageTime> stages = random_stages(generator);
    for (const int micro_batches : {1, 2, 3, 6, 24}) {
      const double step = step_seconds(stages, micro_batches);
      std::vector<StageTime> longer = stages;
      StageTime& stage = longer[std::uniform_int_distribution<std::size_t>(
          0, stages.size() - 1)(generator)];
      double& seconds = i % 3 == 0   ? stage.forward
                        : i % 3 == 1 ? stage.backward
                                     : stage.transfers;
      seconds += more(generator);
      EXPECT_GE(step_seconds(longer, micro_batches), step - 1e-12) << i;
      std::vector<StageTime> twice = stages;
      for (StageTime& one : twice) {
        one = {2 * one.forward, 2 * one.backward, 2 * one.transfers};
      }
      EXPECT_NEAR(step_seconds(twice, micro_batches), 2 * step, 1e-9) << i;
    }
  }
}

TEST(StepTime, TransfersCostNothingButAtBothEndsIfTheyHideBehindManyInFlight) {
  const std::vector<StageTime> stages = {{1.5, 3, 0.1}, {1, 2, 0}};
  // Two are in flight, and the way of 7.6 is hidden by 2 x 4.5.
  EXPECT_NEAR(step_seconds(stages, 8), 4.5 * 8 + 3.1 - 1.5 + 0.1, 1e-12);
}

TEST(StepTime, RoundTripsThatAreNotHiddenFollowEachOther) {
  const std::vector<StageTime> stages = {{1, 2, 4}, {1, 2, 0}};
  // Of micro-batches 0, 3, 5 and 7, say.
  EXPECT_NEAR(step_seconds(stages, 8), 4 * (3 + 7) + 3, 1e-12);
}

TEST(StepTime, OfGpipeIsTheWayAndWhatTheSlowestStagesTake) {
  const std::vector<StageTime> stages = {{1, 2, 0.5}, {2, 3, 0.5}, {1, 4, 0}};
  EXPECT_NEAR(step_seconds(stages, 5, PipelineSchedule::kGpipe),
              14 + 4 * (2 + 4), 1e-12);
}

}  // namespace
}  // namespace tensoropt
