#include "search_space/search_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "describe/descriptions.h"
#include "space/small_space.h"
#include "space/space_problem.h"

namespace tensoropt::testing {
namespace {

// The model of a small space, with a search space of its own.
std::unique_ptr<SearchSpace> search_space_of(const SmallSpace& small) {
  return std::make_unique<SearchSpace>(
      std::make_shared<const Graph>(small.graph),
      std::make_shared<const Registry>(builtin_registry()),
      SpaceSetup{.cluster = small.cluster,
                 .mesh = small.mesh,
                 .space = {},
                 .collectives = {},
                 .operators = {},
                 .overheads = {}});
}

TEST(SearchSpaceTest, SearchesTheSpaceOfItsModel) {
  const SmallSpace small;
  const auto search_space = search_space_of(small);
  const SearchResult found = search_space->search({}, {});
  const SearchResult expected = search(SpaceProblem(*small.space).build(1), {});
  ASSERT_EQ(found.points().size(), expected.points().size());
  for (std::size_t i = 0; i < found.points().size(); ++i) {
    EXPECT_EQ(found.points()[i].memory, expected.points()[i].memory);
    EXPECT_EQ(found.points()[i].time, expected.points()[i].time);
  }
}

TEST(SearchSpaceTest, TheLeastMemoryIsThatOfTheSearch) {
  const SmallSpace small;
  const auto search_space = search_space_of(small);
  const double before = search_space->least_memory({});
  const double expected = search_space->search({}, {}).min_memory();
  for (const double found : {before, search_space->least_memory({})}) {
    EXPECT_LE(found, expected);
    EXPECT_NEAR(found, expected, 1e-9 * expected);
  }
}

// Whether the whole problem is made already or not, and where configs are
// ruled out.
TEST(SearchSpaceTest, RolesArePlayedAsInTheBaselines) {
  const SmallSpace small;
  std::size_t num_points = 0;
  for (const bool restricted : {false, true}) {
    for (const RoleKind kind :
         {RoleKind::kData, RoleKind::kShard, RoleKind::kTensor}) {
      const auto expect_same = [&](SearchSpace& search_space) {
        const AxisRoles roles{{RoleKind::kData}, {kind}};
        const BaselineResult found = search_space.play(roles, {});
        const BaselineResult expected =
            search_space.baselines(1).play(roles, {});
        ASSERT_EQ(found.points().size(), expected.points().size());
        for (std::size_t i = 0; i < found.points().size(); ++i) {
          EXPECT_EQ(found.points()[i], expected.points()[i]);
          EXPECT_EQ(found.unroll(static_cast<int>(i)).config,
                    expected.unroll(static_cast<int>(i)).config);
        }
        num_points += found.points().size();
      };
      const auto search_space = search_space_of(small);
      if (restricted) {
        std::vector<ConfigMask> allowed;
        for (const SpaceNode& node : search_space->space().nodes()) {
          allowed.emplace_back(node.configs->configs.size(), true);
        }
        allowed[search_space->space().node_of(small.producer(small.w1))]
            .back() = false;
        search_space->restrict_to(allowed);
      }
      expect_same(*search_space);
      expect_same(*search_space);
    }
  }
  EXPECT_GT(num_points, 0U);
}

TEST(SearchSpaceTest, SeveralThreadsMayAsk) {
  const auto search_space = search_space_of(SmallSpace());
  std::vector<std::size_t> counts(4);
  std::vector<std::thread> threads;
  for (std::size_t& count : counts) {
    threads.emplace_back(
        [&] { count = search_space->search({}, {}).points().size(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(counts[0], 0U);
  EXPECT_EQ(std::count(counts.begin(), counts.end(), counts[0]), 4);
}

TEST(SearchSpaceTest, RestrictedOnesHaveTheAllowedConfigsOnly) {
  const SmallSpace small;
  const auto search_space = search_space_of(small);
  std::vector<ConfigMask> allowed;
  for (const SpaceNode& node : search_space->space().nodes()) {
    allowed.emplace_back(node.configs->configs.size(), true);
  }
  const int fc1 = search_space->space().node_of(small.fc1);
  const std::vector<std::string> labels =
      node_rows(search_space->space()).at(fc1).configs;
  const auto place = std::find(labels.begin(), labels.end(), "n,n");
  ASSERT_NE(place, labels.end());
  const auto chosen = static_cast<int>(place - labels.begin());
  allowed[fc1].assign(labels.size(), false);
  allowed[fc1][chosen] = true;
  EXPECT_LT(search_space->blocked_node(allowed), 0);
  const auto restricted = search_space_of(small);
  restricted->restrict_to(allowed);
  const SearchResult found = restricted->search({}, {});
  for (std::size_t i = 0; i < found.points().size(); ++i) {
    EXPECT_EQ(found.unroll(static_cast<int>(i)).config[fc1], chosen);
  }
}

TEST(SearchSpaceTest, RowsAreThoseOfTheSpace) {
  const SmallSpace small;
  const auto search_space = search_space_of(small);
  const StrategySpace& space = search_space->space();
  const Strategy strategy = search_space->search({}, {}).unroll(0);
  EXPECT_EQ(node_rows(space).size(), space.nodes().size());
  const std::vector<EdgeEnd> ends = edge_ends(space);
  const std::vector<EdgeRow> edges = edge_rows(space, strategy);
  ASSERT_EQ(ends.size(), space.edges().size());
  ASSERT_EQ(edges.size(), space.edges().size());
  for (std::size_t i = 0; i < ends.size(); ++i) {
    EXPECT_EQ(ends[i].value, edges[i].value);
    const SpaceEdge& edge = space.edges()[i];
    const auto& ports = port_rows(space, edge.target);
    const auto& taken = ports.at(strategy.config[edge.target]).inputs;
    EXPECT_EQ(taken.at(edge.target_port).value, edges[i].layout_to);
  }
  double flops = 0;
  for (const WorkRow& row : work_rows(space, strategy)) {
    flops += row.flops;
    EXPECT_EQ(row.splits.size(), 2U);
  }
  // Two linears of 8 x 16 x 32, forward and twice that in backward (the first
  // has no gradient of its input to compute).
  EXPECT_GE(flops, 5 * 2 * 8 * 16 * 32);
  double time_s = 0;
  for (const EstimateRow& row :
       estimate_rows(space, search_space->operators(), strategy)) {
    EXPECT_EQ(row.source, "roofline");
    time_s += row.time_s;
  }
  EXPECT_GT(time_s, 0);
  EXPECT_LE(time_s, strategy.time);
}

}  // namespace
}  // namespace tensoropt::testing
