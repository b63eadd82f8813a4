#include "baselines/subproblem.h"

#include <gtest/gtest.h>

#include <string>

#include "problem/random_problem.h"
#include "search/checks.h"

namespace tensoropt::testing {
namespace {

std::vector<ConfigMask> random_masks(Dice& dice, const Problem& problem) {
  std::vector<ConfigMask> masks;
  for (const auto& node : problem.nodes) {
    ConfigMask mask(node->num_configs());
    for (std::size_t c = 0; c < mask.size(); ++c) mask[c] = dice.chance(50);
    mask[dice.roll(0, node->num_configs() - 1)] = true;
    masks.push_back(std::move(mask));
  }
  return masks;
}

TEST(Subproblem, HasTheFrontierOfTheRestrictedProblem) {
  int feasible = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Dice dice(seed);
    for (const Shape& shape : all_shapes(dice)) {
      SCOPED_TRACE(shape.name + ", seed " + std::to_string(seed));
      const Problem problem = random_problem(
          dice, RandomTables{.max_configs = 5}, shape.num_nodes, shape.pairs);
      const auto masks = random_masks(dice, problem);
      SubproblemMaker maker(problem);
      const Subproblem part = maker.make(masks);
      const auto result = search_if_any(part.problem, {});
      const std::vector<Cost> expected = brute_force(restrict(problem, masks));
      EXPECT_EQ(result ? costs(*result) : std::vector<Cost>{}, expected);
      if (!result) continue;
      ++feasible;
      const Point bound = lower_bound(part.problem);
      for (int i = 0; i < static_cast<int>(result->points().size()); ++i) {
        const Point point = result->points()[i];
        EXPECT_EQ(recompute(problem, part.in_whole(result->unroll(i))),
                  (Cost{point.memory, point.time}));
        EXPECT_TRUE(dominates(bound, point));
      }
    }
  }
  EXPECT_GT(feasible, 100);
}

TEST(Subproblem, EqualTablesAndMasksAreShared) {
  Dice dice(1);
  Problem problem =
      random_problem(dice, RandomTables{.max_configs = 5}, 2, {{0, 1}});
  problem.nodes.insert(problem.nodes.end(),
                       {problem.nodes[0], problem.nodes[1]});
  problem.edges.push_back({2, 3, problem.edges[0].table});
  const auto masks =
      random_masks(dice, {{problem.nodes[0], problem.nodes[1]}, {}});
  SubproblemMaker maker(problem);
  const Problem part =
      maker.make({masks[0], masks[1], masks[0], masks[1]}).problem;
  EXPECT_EQ(part.nodes[0], part.nodes[2]);
  EXPECT_EQ(part.edges[0].table, part.edges[1].table);
}

}  // namespace
}  // namespace tensoropt::testing
