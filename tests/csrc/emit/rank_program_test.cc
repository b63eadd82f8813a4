#include "emit/rank_program.h"

#include <gtest/gtest.h>

#include "common/check.h"

namespace tensoropt {
namespace {

// loss = sum(embedding(table [8, 4], index [6])) on two devices.
class RankProgramTest : public ::testing::Test {
 protected:
  RankProgramTest() {
    const ValueId table = graph_.add_source(NodeKind::kParameter, "table",
                                            {{8, 4}, DType::kFloat32});
    const ValueId index =
        graph_.add_source(NodeKind::kInput, "index", {{6}, DType::kInt64});
    look_up_ = graph_.add_op("look_up", "aten.embedding.default",
                             {{"weight", ValueRef{table}},
                              {"indices", ValueRef{index}},
                              {"padding_idx", Literal{std::int64_t{-1}}}},
                             {{{6, 4}, DType::kFloat32}});
    const ValueId rows = graph_.node(look_up_).outputs[0];
    sum_ = graph_.add_op("sum", "aten.sum.default", {{"self", ValueRef{rows}}},
                         {{{}, DType::kFloat32}});
    graph_.set_outputs({graph_.node(sum_).outputs[0]});
    strategy_.config.assign(space().nodes().size(), 0);
    strategy_.edge_tag.assign(space().edges().size(), 0);
  }

  const StrategySpace& space() {
    if (!space_) {
      space_ = std::make_unique<StrategySpace>(
          graph_, builtin_registry(), Machine{mesh_, device_, collectives_},
          SpaceOptions{});
    }
    return *space_;
  }
  void choose(NodeId node, const std::string& label) {
    const int index = space().node_of(node);
    const auto& configs = space().nodes()[index].configs->configs;
    for (std::size_t i = 0; i < configs.size(); ++i) {
      if (configs[i].label != label) continue;
      strategy_.config[index] = static_cast<int>(i);
      return;
    }
    FAIL() << "no config " << label;
  }
  RankProgram program(int rank) {
    return {space(), builtin_registry(), strategy_, rank};
  }

  Graph graph_;
  NodeId look_up_;
  NodeId sum_;
  Mesh mesh_{{{2, 0}}};
  Device device_;
  Cluster cluster_{"two", device_, {{"gpu", 2, 1e9, 1e-6}}};
  AnalyticCollectives collectives_{cluster_, mesh_};
  std::unique_ptr<StrategySpace> space_;
  Strategy strategy_;
};

TEST_F(RankProgramTest, SplitVocabularyStartsAtTheRanksRows) {
  choose(look_up_, "v");
  for (const int rank : {0, 1}) {
    const EmittedCall call = program(rank).call(look_up_);
    EXPECT_EQ(call.form.target, "tensoropt.embedding_shard.default");
    const std::vector<Literal> extra{std::int64_t{4 * rank}, std::int64_t{-1}};
    EXPECT_EQ(call.form.extra, extra);
    EXPECT_EQ(call.shard_index, rank);
  }
}

TEST_F(RankProgramTest, WholeOperatorIsTheSameCallOnAllRanks) {
  choose(look_up_, "-");
  for (const int rank : {0, 1}) {
    const EmittedCall call = program(rank).call(look_up_);
    EXPECT_TRUE(call.form.target.empty());
    EXPECT_EQ(call.shard_index, 0);
  }
}

TEST_F(RankProgramTest, ReshardsJoinTheLayoutsOfBothEnds) {
  choose(look_up_, "v");  // Partial rows
  choose(sum_, "-");      // needs them whole
  const auto& edges = space().edges();
  for (std::size_t edge = 0; edge < edges.size(); ++edge) {
    const EmittedReshard reshard = program(0).reshard(SpaceEdgeId(edge));
    if (edges[edge].target != space().node_of(sum_)) continue;
    ASSERT_EQ(reshard.forward.groups, std::vector<AxisSet>{1});
    EXPECT_EQ(reshard.forward.steps.size(), kIntsPerStep);
    // The gradient comes whole and is taken whole.
    EXPECT_TRUE(reshard.backward.steps.empty());
  }
  const ValueId rows = graph_.node(look_up_).outputs[0];
  EXPECT_EQ(program(0).layout_of(rows), Layout::parse("P"));
}

TEST_F(RankProgramTest, GradientsComeAsTheConsumerMakesThem) {
  int edge = 0;  // of the table
  while (space().edges()[edge].target != space().node_of(look_up_)) ++edge;
  choose(look_up_, "b0");  // each rank has some of the positions
  EXPECT_EQ(program(0).gradient_layout(SpaceEdgeId(edge)), Layout::parse("P"));
  choose(look_up_, "v");
  EXPECT_EQ(program(0).gradient_layout(SpaceEdgeId(edge)), Layout::parse("S0"));
}

TEST_F(RankProgramTest, StrategyOfAnotherModelIsRefused) {
  strategy_.config.pop_back();
  EXPECT_THROW(program(0), UserError);
  strategy_.config.push_back(1000);
  EXPECT_THROW(program(0), UserError);
  strategy_.config.back() = -1;
  EXPECT_THROW(program(0), UserError);
}

}  // namespace
}  // namespace tensoropt
