#include "space/space_problem.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "common/check.h"
#include "search/frontier_tracking.h"
#include "space/small_space.h"

namespace tensoropt {
namespace {

using testing::SmallSpace;

const std::vector<StepShape> kShapes = {{1, 1}, {2, 1}, {4, 3}};

void expect_equal(std::span<const Choice> found,
                  std::span<const Choice> expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].memory, expected[i].memory);
    EXPECT_EQ(found[i].time, expected[i].time);
    EXPECT_EQ(found[i].tag, expected[i].tag);
  }
}

TEST(SpaceProblem, SeveralStepsGetTheProblemsThatEachGetsByItself) {
  const SmallSpace small(SpaceOptions{.recompute = true});
  const StrategySpace& space = *small.space;
  const auto all = SpaceProblem(space).build_all(kShapes, 2);
  ASSERT_EQ(all.size(), kShapes.size());
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    const Problem one = SpaceProblem(space, kShapes[i]).build(1);
    ASSERT_EQ(all[i].edges.size(), one.edges.size());
    for (std::size_t e = 0; e < one.edges.size(); ++e) {
      expect_equal(all[i].edges[e].table->all_choices(),
                   one.edges[e].table->all_choices());
    }
    for (std::size_t n = 0; n < one.nodes.size(); ++n) {
      for (int c = 0; c < one.nodes[n]->num_configs(); ++c) {
        expect_equal(all[i].nodes[n]->choices(c), one.nodes[n]->choices(c));
      }
    }
  }
}

TEST(SpaceProblem, TablesHaveTheOptionsOfEachPairOfConfigs) {
  const SmallSpace small(SpaceOptions{.recompute = true});
  const StrategySpace& space = *small.space;
  for (const StepShape& shape : kShapes) {
    const SpaceProblem costs(space, shape);
    const Problem problem = costs.build(1);
    for (std::size_t e = 0; e < space.edges().size(); ++e) {
      const SpaceEdge& edge = space.edges()[e];
      const EdgeTable& table = *problem.edges[e].table;
      for (int s = 0; s < table.num_sources(); ++s) {
        const EdgeTable::Row row = table.row(s);
        for (const int t : row.targets) {
          std::vector<Choice> expected;
          const auto options = costs.options_of(edge, s, t);
          for (const EdgeOption& one : options.all()) {
            expected.push_back(
                {one.memory_bytes, one.time_s, one.choice.tag()});
          }
          expect_equal(table.choices(s, t), expected);
        }
      }
    }
  }
}

TEST(SpaceProblem, TensorsThatShareAResharderHaveTheTimesOfTheirOwn) {
  const SmallSpace small;
  const StrategySpace& space = *small.space;
  const auto meta_of = [&](ValueId value) -> const TensorMeta& {
    return space.graph().value(value).meta;
  };
  EXPECT_EQ(&space.resharder(meta_of(small.w1)),
            &space.resharder(meta_of(small.w2)));
  for (const SpaceEdge& edge : space.edges()) {
    const TensorMeta& meta = meta_of(edge.value);
    const TensorResharder own(small.mesh, small.collectives, small.device,
                              meta.counts(), meta.unit_bytes());
    const auto& sources = space.nodes()[edge.source].configs->configs;
    const auto& targets = space.nodes()[edge.target].configs->configs;
    for (std::size_t s = 0; s < sources.size(); ++s) {
      for (std::size_t t = 0; t < targets.size(); ++t) {
        const Layout& from = space.source_port(edge, s).value;
        const Layout& to = space.target_port(edge, t).value;
        EXPECT_EQ(space.resharder(meta).time_s(from, to), own.time_s(from, to));
      }
    }
  }
}

TEST(SpaceProblem, NodesCostTheirPartsInAStep) {
  const SmallSpace small(SpaceOptions{.recompute = true});
  const StrategySpace& space = *small.space;
  bool some_kept = false, some_state = false;
  for (const StepShape& shape : kShapes) {
    const Problem problem = SpaceProblem(space, shape).build(1);
    for (std::size_t n = 0; n < space.nodes().size(); ++n) {
      const std::vector<CostParts>& costs = space.nodes()[n].configs->costs;
      for (std::size_t c = 0; c < costs.size(); ++c) {
        const CostParts& parts = costs[c];
        const Choice& choice =
            problem.nodes[n]->choices(static_cast<int>(c))[0];
        EXPECT_EQ(choice.memory,
                  parts.state_bytes + shape.in_flight * parts.kept_bytes);
        EXPECT_EQ(choice.time,
                  shape.micro_batches * parts.micro_batch_s + parts.step_s);
        some_kept |= parts.kept_bytes > 0;
        some_state |= parts.state_bytes > 0 && parts.step_s > 0;
      }
    }
  }
  EXPECT_TRUE(some_kept && some_state);
}

// Tables are those of the whole, but for cells of other configs, which are
// empty.
TEST(SpaceProblem, PartsHaveTheChoicesOfTheConfigsThatAreAskedFor) {
  const SmallSpace small(SpaceOptions{.recompute = true});
  const SpaceProblem costs(*small.space, {.micro_batches = 2});
  const Problem whole = costs.build(1);
  std::size_t left_out = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 dice(seed);
    std::vector<ConfigMask> allowed;
    for (const auto& node : whole.nodes) {
      allowed.emplace_back();
      for (int c = 0; c < node->num_configs(); ++c) {
        allowed.back().push_back(dice() % 5 < 3);
      }
    }
    const Problem part = costs.build(2, {.allowed = allowed});
    ASSERT_EQ(part.edges.size(), whole.edges.size());
    for (std::size_t e = 0; e < whole.edges.size(); ++e) {
      const Problem::Edge& edge = whole.edges[e];
      for (int s = 0; s < edge.table->num_sources(); ++s) {
        for (int t = 0; t < edge.table->num_targets(); ++t) {
          const bool is_asked =
              allowed[edge.source][s] && allowed[edge.target][t];
          const auto expected = edge.table->choices(s, t);
          left_out += is_asked ? 0 : expected.size();
          expect_equal(part.edges[e].table->choices(s, t),
                       is_asked ? expected : std::span<const Choice>());
        }
      }
    }
  }
  EXPECT_GT(left_out, 0U);
}

TEST(SpaceProblem, WithoutReshardsTheLeastMemoryIsTheSame) {
  for (const bool recompute : {false, true}) {
    const SmallSpace small(SpaceOptions{.recompute = recompute});
    for (const StepShape& shape : kShapes) {
      const SpaceProblem costs(*small.space, shape);
      const SearchResult expected = search(costs.build(1), {});
      const SearchResult found =
          search(costs.build(1, {.without_reshards = true}), {});
      EXPECT_EQ(found.min_memory(), expected.min_memory());
      EXPECT_LT(found.min_time(), expected.min_time());
    }
  }
}

TEST(SpaceProblem, MoreInFlightThanThereAreIsRefused) {
  const SmallSpace small;
  for (const StepShape& shape :
       {StepShape{0, 0}, StepShape{2, 0}, StepShape{2, 3}}) {
    EXPECT_THROW(SpaceProblem(*small.space, shape), UserError);
  }
}

}  // namespace
}  // namespace tensoropt
