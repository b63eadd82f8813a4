// Ids of graphs, of spaces and of problems do not go for each other.
#include <gtest/gtest.h>

#include <memory>
#include <type_traits>

#include "emit/rank_program.h"
#include "problem/problem.h"
#include "space/model.h"

namespace tensoropt {
namespace {

template <auto kMethod, typename Object, typename... Args>
constexpr bool kTakes = std::is_invocable_v<decltype(kMethod), Object, Args...>;

static_assert(kTakes<&SpaceModel::rule, SpaceModel, NodeId>);
static_assert(!kTakes<&SpaceModel::rule, SpaceModel, ValueId>);
static_assert(!kTakes<&SpaceModel::rule, SpaceModel, SpaceNodeId>);
static_assert(kTakes<&SpaceModel::is_needed, SpaceModel, ValueId>);
static_assert(!kTakes<&SpaceModel::is_needed, SpaceModel, NodeId>);
static_assert(!kTakes<&Graph::node, Graph, ValueId>);
static_assert(!kTakes<&Graph::node, Graph, int>);
static_assert(!kTakes<&Graph::value, Graph, NodeId>);
static_assert(!kTakes<&StrategySpace::node_of, StrategySpace, SpaceNodeId>);
static_assert(kTakes<&RankProgram::reshard, RankProgram, SpaceEdgeId>);
static_assert(!kTakes<&RankProgram::reshard, RankProgram, SpaceNodeId>);
static_assert(!kTakes<&RankProgram::reshard, RankProgram, ValueId>);
static_assert(!kTakes<&RankProgram::call, RankProgram, SpaceNodeId>);
static_assert(std::is_same_v<decltype(SpaceEdge::source), SpaceNodeId>);

template <typename End>
constexpr bool kEndsAnEdge =
    std::is_constructible_v<Problem::Edge, End, End,
                            std::shared_ptr<const EdgeTable>>;

static_assert(kEndsAnEdge<Problem::NodeId> && kEndsAnEdge<int>);
static_assert(!kEndsAnEdge<SpaceNodeId> && !kEndsAnEdge<Problem::EdgeId>);
static_assert(!std::is_convertible_v<Problem::NodeId, SpaceNodeId>);
static_assert(!std::is_convertible_v<int, Problem::NodeId>);

TEST(IdKinds, NoneIsThereUntilItIsSet) {
  EXPECT_TRUE(SpaceEdge().source.is_none());
  EXPECT_TRUE(Node().id.is_none());
  EXPECT_TRUE(Value().producer.is_none());
}

}  // namespace
}  // namespace tensoropt
