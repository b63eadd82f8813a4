#include "pipeline/composition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "common/check.h"
#include "pipeline/step_time.h"

namespace tensoropt {
namespace {

Point cost_of(const std::vector<StageChoice>& choices,
              const std::vector<Pipeline::Stage>& stages,
              const PipelineShape& shape) {
  Point cost;
  Rest rest;
  for (int later = 0; later < shape.stages; ++later) {
    const Pipeline::Stage& stage = stages[shape.stages - 1 - later];
    const StageChoice& choice = choices[stage.choice];
    const Point& point = choice.points[stage.point];
    const double both = point.time / shape.micro_batches;
    rest =
        with_stage({both * shape.forward_share,
                    both * (1 - shape.forward_share), choice.transfer_seconds},
                   later, rest, shape.micro_batches);
    cost.memory = std::max(cost.memory, point.memory);
  }
  cost.time = rest.step;
  return cost;
}

// All pipelines that there are.
std::vector<Point> all_costs(const std::vector<StageChoice>& choices,
                             const PipelineShape& shape) {
  std::vector<Point> costs;
  std::vector<Pipeline::Stage> stages;
  const std::function<void(int, int)> extend = [&](int cut, int layout) {
    const int stage = static_cast<int>(stages.size());
    if (stage == shape.stages) {
      if (cut == shape.end) costs.push_back(cost_of(choices, stages, shape));
      return;
    }
    for (std::size_t c = 0; c < choices.size(); ++c) {
      const StageChoice& choice = choices[c];
      const bool fits = choice.stage == stage && choice.first_cut == cut &&
                        (stage == 0 || choice.first_layout == layout);
      if (!fits) continue;
      for (std::size_t p = 0; p < choice.points.size(); ++p) {
        stages.push_back({static_cast<int>(c), static_cast<int>(p)});
        extend(choice.last_cut, choice.last_layout);
        stages.pop_back();
      }
    }
  };
  extend(0, 0);
  return costs;
}

std::vector<Point> random_frontier(std::mt19937& generator, double scale) {
  std::uniform_real_distribution<double> ratio(1.01, 1.8);
  std::vector<Point> points(
      std::uniform_int_distribution<std::size_t>(1, 4)(generator));
  Point now{scale, 10 * scale};
  for (Point& point : points) {
    now = {now.memory * ratio(generator), now.time / ratio(generator)};
    point = now;
  }
  return points;
}

struct Random {
  PipelineShape shape;
  std::vector<StageChoice> choices;
};

Random random_choices(std::mt19937& generator) {
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(generator);
  };
  std::uniform_real_distribution<double> transfer(0, 1);
  Random found;
  found.shape.stages = draw(1, 4);
  found.shape.micro_batches = draw(1, 9);
  found.shape.end = found.shape.stages + draw(0, 2);
  for (int stage = 0; stage < found.shape.stages; ++stage) {
    const int choices = draw(2, 8);
    for (int i = 0; i < choices; ++i) {
      const int first = stage == 0 ? 0 : draw(stage, found.shape.end - 1);
      const int last = stage + 1 == found.shape.stages
                           ? found.shape.end
                           : draw(first + 1, found.shape.end);
      found.choices.push_back({stage, first, last, draw(0, 1), draw(0, 1),
                               transfer(generator),
                               random_frontier(generator, last - first)});
    }
  }
  return found;
}

TEST(Composition, HasOneForEveryPipelineThatThereIs) {
  int composed = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 generator(seed);
    Random random = random_choices(generator);
    const std::vector<Point> all = all_costs(random.choices, random.shape);
    for (const double step : {0.0, 0.1}) {
      random.shape.memory_step = step;
      const std::vector<Pipeline> found = compose(random.choices, random.shape);
      for (const Point& point : all) {
        const auto stands_for = [&](const Pipeline& pipeline) {
          return pipeline.cost.memory <=
                     (1 + step) * point.memory * (1 + 1e-12) &&
                 pipeline.cost.time <= point.time * (1 + 1e-12);
        };
        EXPECT_TRUE(std::any_of(found.begin(), found.end(), stands_for))
            << "seed " << seed << ": " << point.memory << ", " << point.time;
      }
      EXPECT_EQ(found.empty(), all.empty()) << "seed " << seed;
      composed += !found.empty();
    }
  }
  EXPECT_GT(composed, 200);
}

TEST(Composition, IsMadeOfStagesThatFitEachOther) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 generator(seed);
    const Random random = random_choices(generator);
    double last_time = 0, last_memory = 0;
    for (const Pipeline& pipeline : compose(random.choices, random.shape)) {
      const Point cost = cost_of(random.choices, pipeline.stages, random.shape);
      EXPECT_DOUBLE_EQ(cost.memory, pipeline.cost.memory) << "seed " << seed;
      EXPECT_DOUBLE_EQ(cost.time, pipeline.cost.time) << "seed " << seed;
      int cut = 0;
      for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
        const StageChoice& choice = random.choices[pipeline.stages[s].choice];
        EXPECT_EQ(choice.stage, static_cast<int>(s));
        EXPECT_EQ(choice.first_cut, cut);
        if (s > 0) {
          EXPECT_EQ(random.choices[pipeline.stages[s - 1].choice].last_layout,
                    choice.first_layout);
        }
        cut = choice.last_cut;
      }
      EXPECT_EQ(cut, random.shape.end);
      EXPECT_GT(cost.memory, last_memory) << "seed " << seed;
      if (last_memory > 0) {
        EXPECT_LT(cost.time, last_time) << "seed " << seed;
      }
      last_time = cost.time;
      last_memory = cost.memory;
    }
  }
}

TEST(Composition, BalancesStages) {
  std::vector<StageChoice> choices;
  for (int cut = 1; cut < 8; ++cut) {
    choices.push_back({0, 0, cut, 0, 0, 0, {{1, 3.0 * cut}}});
    choices.push_back({1, cut, 8, 0, 0, 0, {{1, 3.0 * (8 - cut) + 6}}});
  }
  const std::vector<Pipeline> found =
      compose(choices, {.stages = 2, .micro_batches = 3, .end = 8});
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(choices[found[0].stages[0].choice].last_cut, 5);
}

TEST(Composition, RefusesWhatCannotBe) {
  const StageChoice choice{0, 0, 1, 0, 0, 0, {{1, 2}, {2, 1}}};
  const PipelineShape shape{.stages = 1, .micro_batches = 1, .end = 1};
  EXPECT_EQ(compose({choice}, shape).size(), 2);
  EXPECT_TRUE(compose({}, shape).empty());
  for (const PipelineShape& wrong :
       {PipelineShape{.stages = 0, .micro_batches = 1, .end = 1},
        PipelineShape{.stages = 1, .micro_batches = 0, .end = 1},
        PipelineShape{.micro_batches = 1, .end = 1, .forward_share = 1},
        PipelineShape{.micro_batches = 1, .end = 1, .memory_step = -1}}) {
    EXPECT_THROW(compose({choice}, wrong), UserError);
  }
  StageChoice wrong = choice;
  wrong.stage = 1;
  EXPECT_THROW(compose({wrong}, shape), UserError);
  wrong = choice;
  wrong.last_cut = 2;
  EXPECT_THROW(compose({wrong}, shape), UserError);
  wrong = choice;
  wrong.points = {{2, 1}, {1, 2}};
  EXPECT_THROW(compose({wrong}, shape), UserError);
}

}  // namespace
}  // namespace tensoropt
