// Strategies by name: back as they were, also in a space that numbers its
// configs otherwise, and refused by name where something is not there.

#include "describe/strategy_names.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "common/check.h"
#include "describe/network_time.h"
#include "problem/random_strategy.h"
#include "space/small_space.h"
#include "space/space_problem.h"

namespace tensoropt {
namespace {

using testing::SmallSpace;

constexpr std::uint64_t kSeeds = 50;
constexpr StepShape kStep{.micro_batches = 2};

SpaceOptions with_all() {
  SpaceOptions options{.config_space = ConfigSpace::kFull};
  options.recompute = true;
  return options;
}

std::string refusal(const StrategyNames& names, const NamedChoices& choices) {
  try {
    names.strategy(choices);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(StrategyNames, StrategiesComeBackAsTheyWere) {
  const SmallSpace small(with_all());
  const StrategyNames names(*small.space, kStep);
  const Problem problem = SpaceProblem(*small.space, kStep).build(1);
  bool some_kept = false;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Strategy strategy = random_strategy(problem, seed, 0);
    const NamedChoices choices = names.of(strategy);
    const Strategy again = names.strategy(choices);
    EXPECT_EQ(again.config, strategy.config);
    EXPECT_EQ(again.edge_tag, strategy.edge_tag);
    EXPECT_EQ(choices.configs.size(), small.space->nodes().size());
    some_kept |= !choices.edges.empty();
  }
  EXPECT_TRUE(some_kept);
}

TEST(StrategyNames, ALargerSpaceHasTheSameStrategies) {
  const SmallSpace small;
  const SmallSpace large(
      SpaceOptions{.config_space = ConfigSpace::kFull, .recompute = true});
  const StrategyNames names(*small.space, kStep);
  const StrategyNames names_in_large(*large.space, kStep);
  const Problem problem = SpaceProblem(*small.space, kStep).build(1);
  bool some_numbers_differ = false;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Strategy strategy = random_strategy(problem, seed, 0);
    NamedChoices choices = names.of(strategy);
    const Strategy there = names_in_large.strategy(choices);
    some_numbers_differ |= there.config != strategy.config;
    for (std::size_t i = 0; i < small.space->edges().size(); ++i) {
      const SpaceEdge& here = small.space->edges()[i];
      const SpaceEdge& edge = large.space->edges()[i];
      EXPECT_EQ(
          small.space->source_port(here, strategy.config[here.source]).value,
          large.space->source_port(edge, there.config[edge.source]).value);
      EXPECT_EQ(
          small.space->target_port(here, strategy.config[here.target]).gradient,
          large.space->target_port(edge, there.config[edge.target]).gradient);
    }
    EXPECT_EQ(compute_time_s(*small.space, strategy),
              compute_time_s(*large.space, there));
  }
  EXPECT_TRUE(some_numbers_differ);
}

TEST(StrategyNames, NodesThatAreCalledAlikeAreNumbered) {
  const SmallSpace small;
  Graph graph;
  const ValueId x =
      graph.add_source(NodeKind::kParameter, "scale", {{4}, DType::kFloat32});
  const NodeId scale =
      graph.add_op("scale", "aten.relu.default", {{"self", ValueRef{x}}},
                   {{{4}, DType::kFloat32}});
  graph.set_outputs({graph.node(scale).outputs[0]});
  const StrategySpace space(
      graph, builtin_registry(),
      Machine{small.mesh, small.device, small.collectives}, SpaceOptions{});
  const StrategyNames names(space, kStep);
  const Strategy strategy =
      random_strategy(SpaceProblem(space, kStep).build(1), 0, 0);
  EXPECT_EQ(names.strategy(names.of(strategy)).config, strategy.config);
  EXPECT_EQ(space.nodes()[0].name, "scale");
  EXPECT_EQ(space.nodes()[1].name, "scale (2)");
  EXPECT_EQ(names.edge_name(SpaceEdgeId(0)), "scale -> scale (2)[0]");
}

TEST(StrategyNames, WhatIsNotThereIsRefusedByName) {
  const SmallSpace small;
  const StrategyNames names(*small.space, kStep);
  const Problem problem = SpaceProblem(*small.space, kStep).build(1);
  const NamedChoices good = names.of(random_strategy(problem, 0, 0));
  ASSERT_EQ(refusal(names, good), "");

  NamedChoices choices = good;
  choices.configs[0] = "n9,n9";
  EXPECT_EQ(refusal(names, choices), "'x' has no config 'n9,n9'");
  choices = good;
  choices.configs.pop_back();
  EXPECT_EQ(refusal(names, choices),
            str_format("{} configs are given for {} operators, parameters and "
                       "values",
                       good.configs.size() - 1, good.configs.size()));
  choices = good;
  choices.edges[SpaceEdgeId(99)] = "before";
  EXPECT_EQ(refusal(names, choices), str_format("there is no edge 99, only {}",
                                                small.space->edges().size()));
  choices = good;
  choices.edges[SpaceEdgeId(0)] = "held, before";
  EXPECT_EQ(refusal(names, choices),
            "edge 'x -> fc1[0]' has no choice 'held, before'");
}

TEST(StrategyNames, EdgesAreCrossedOnlyAsTheyCanBe) {
  const SmallSpace small(with_all());
  const StrategyNames names(*small.space, kStep);
  const Problem problem = SpaceProblem(*small.space, kStep).build(1);
  int refused = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Strategy strategy = random_strategy(problem, seed, 0);
    EXPECT_NO_THROW(names.check_edges(strategy));
    // What no option has, dominated or not: the loss is not held.
    strategy.edge_tag.back() = EdgeChoice{.held = true}.tag();
    EXPECT_THROW(names.check_edges(strategy), UserError);
    // Configs that cannot be neighbours.
    const Strategy other = random_strategy(problem, seed + kSeeds, 0);
    strategy = random_strategy(problem, seed, 0);
    strategy.config = other.config;
    try {
      names.check_edges(strategy);
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(StrategyNames, StrategiesOfAnotherSpaceAreRefused) {
  const SmallSpace small;
  const StrategyNames names(*small.space, kStep);
  Strategy strategy =
      random_strategy(SpaceProblem(*small.space, kStep).build(1), 0, 0);
  strategy.config[0] = 10000;
  EXPECT_THROW(names.of(strategy), UserError);
  strategy.config.pop_back();
  EXPECT_THROW(names.of(strategy), UserError);
}

}  // namespace
}  // namespace tensoropt
