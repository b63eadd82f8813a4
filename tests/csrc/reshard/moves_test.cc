#include "reshard/moves.h"

#include <gtest/gtest.h>

#include <set>

#include "reshard/simulation.h"

namespace tensoropt {
namespace {

using testing::all_layouts;
using testing::Simulation;

const Mesh& mesh_222() {
  static const Mesh mesh({{2, 0}, {2, 1}, {2, 1}});
  return mesh;
}

// All steps that change `layout` in axes of one placement, legal or not.
std::vector<Step> conceivable_steps(const Layout& layout, int num_dims) {
  std::vector<Step> steps;
  const auto axes = axes_by_code(layout);
  for (int kind = 0; kind < 6; ++kind) {
    for (int dim = -1; dim < num_dims; ++dim) {
      for (int to_dim = -1; to_dim < num_dims; ++to_dim) {
        const auto step_kind = static_cast<StepKind>(kind);
        const bool moves = step_kind == StepKind::kAllToAll;
        const bool no_dim =
            step_kind == StepKind::kAllReduce || step_kind == StepKind::kMask;
        if (no_dim != (dim < 0) || moves != (to_dim >= 0)) continue;
        if (moves && dim == to_dim) continue;
        Step step{step_kind, 0, dim, to_dim};
        for_each_subset(axes[change_of(step).before.code()], [&](AxisSet set) {
          step.axes = set;
          steps.push_back(step);
        });
      }
    }
  }
  return steps;
}

// The heart of the order of axes: a step is legal exactly if executing it gives
// the data of the layout that it claims to give.
TEST(Moves, LegalExactlyIfTheDataComeOutRight) {
  const Shape shape{8, 16};
  int num_legal = 0;
  int num_illegal = 0;
  for (const Layout& layout : all_layouts(mesh_222(), shape)) {
    for (const Step& step : conceivable_steps(layout, 2)) {
      Simulation simulation(mesh_222(), shape, layout);
      simulation.run({step});
      const bool right = simulation.holds(apply(step, layout));
      EXPECT_EQ(legal(step, layout, shape, mesh_222()), right)
          << layout.to_string() << ": " << to_string(step);
      ++(right ? num_legal : num_illegal);
    }
  }
  EXPECT_GT(num_legal, 400);
  EXPECT_GT(num_illegal, 50);
}

TEST(Moves, EnumerationGivesEveryLegalMoveOnce) {
  const Shape shape{8, 16};
  for (const Layout& layout : all_layouts(mesh_222(), shape)) {
    std::vector<Step> expected;
    for (const Step& step : conceivable_steps(layout, 2)) {
      if (legal(step, layout, shape, mesh_222())) expected.push_back(step);
    }
    std::vector<Step> found;
    for_each_move(layout, any_placement(3, 2),
                  [&](const Step& step) { found.push_back(step); });
    EXPECT_EQ(found.size(), expected.size()) << layout.to_string();
    for (const Step& step : expected) {
      EXPECT_EQ(std::count(found.begin(), found.end(), step), 1)
          << layout.to_string() << ": " << to_string(step);
    }
  }
}

TEST(Moves, EnumerationKeepsToAllowedPlacements) {
  AllowedAxes allowed = any_placement(3, 2);
  allowed[Placement::shard(1).code()] = 0b010;
  int into_dim_1 = 0;
  for_each_move(Layout::parse("R,P,S0"), allowed, [&](const Step& step) {
    const Layout after = apply(step, Layout::parse("R,P,S0"));
    EXPECT_EQ(after.axes_sharding(1) & ~0b010u, 0u) << after.to_string();
    into_dim_1 += after.axes_sharding(1) != 0;
  });
  EXPECT_EQ(into_dim_1, 1);
}

TEST(Moves, StepBetweenFindsTheMove) {
  const Shape shape{8, 16};
  const auto layouts = all_layouts(mesh_222(), shape);
  for (const Layout& before : layouts) {
    std::set<Layout> reached;
    for_each_move(before, any_placement(3, 2), [&](const Step& step) {
      const Layout after = apply(step, before);
      EXPECT_EQ(step_between(before, after), step) << before.to_string();
      reached.insert(after);
    });
    for (const Layout& after : layouts) {
      EXPECT_EQ(step_between(before, after).has_value(),
                reached.contains(after))
          << before.to_string() << " -> " << after.to_string();
    }
  }
}

TEST(Moves, AStepThatDoesNotDivideIsIllegal) {
  const Mesh mesh({{2, 0}, {3, 0}});
  const Layout layout = Layout::replicated(2);
  const Step slice_by_6{StepKind::kSlice, 0b11, 0, -1};
  EXPECT_TRUE(legal(slice_by_6, layout, Shape{12}, mesh));
  EXPECT_FALSE(legal(slice_by_6, layout, Shape{10}, mesh));
  const Step missing_dim{StepKind::kSlice, 0b01, 1, -1};
  EXPECT_FALSE(legal(missing_dim, layout, Shape{12}, mesh));
  const Step no_axes{StepKind::kSlice, 0, 0, -1};
  EXPECT_FALSE(legal(no_axes, layout, Shape{12}, mesh));
  const Step unknown_axis{StepKind::kSlice, 0b100, 0, -1};
  EXPECT_FALSE(legal(unknown_axis, layout, Shape{12}, mesh));
}

TEST(Moves, StepsAreWrittenInWords) {
  EXPECT_EQ(to_string(Steps{{StepKind::kAllGather, 0b10, 1, -1},
                            {StepKind::kAllToAll, 0b1, 0, 2},
                            {StepKind::kAllReduce, 0b11, -1, -1}}),
            "all_gather(dim 1, axes 0b10); all_to_all(dim 0, to dim 2, axes "
            "0b1); all_reduce(axes 0b11)");
}

}  // namespace
}  // namespace tensoropt
