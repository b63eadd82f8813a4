// Parameters that are computed with in a narrower dtype.

#include "space/parameter_copies.h"

#include <gtest/gtest.h>

#include "comm/collective.h"
#include "space/space.h"
#include "space/space_problem.h"

namespace tensoropt {
namespace {

TensorMeta tensor(Shape shape, DType dtype = DType::kFloat32) {
  return {std::move(shape), dtype};
}

// sum(linear(cast(x), view(cast(w)))) on two devices; also of x a cast, and of
// `v` one that widens.
class CastSpace : public ::testing::Test {
 protected:
  CastSpace() {
    x_ = graph_.add_source(NodeKind::kInput, "x", tensor({8, 16}), true);
    w_ = graph_.add_source(NodeKind::kParameter, "w", tensor({32, 16}));
    v_ = graph_.add_source(NodeKind::kParameter, "v",
                           tensor({32}, DType::kBFloat16));
    narrow_x_ = cast("x2", x_, {8, 16}, DType::kBFloat16);
    narrow_w_ = cast("w2", w_, {32, 16}, DType::kBFloat16);
    wide_v_ = cast("v2", v_, {32}, DType::kFloat32);
    fc_ = op("fc", "aten.linear.default",
             {{"input", ValueRef{narrow_x_}}, {"weight", ValueRef{narrow_w_}}},
             tensor({8, 32}, DType::kBFloat16));
    const ValueId product =
        op("mul", "aten.mul.Tensor",
           {{"self", ValueRef{fc_}}, {"other", ValueRef{wide_v_}}},
           tensor({8, 32}));
    graph_.set_outputs({op("sum", "aten.sum.default",
                           {{"self", ValueRef{product}}}, tensor({}))});
  }

  StrategySpace space(ReduceDType reduce_dtype = ReduceDType::kParameter) {
    return {graph_, builtin_registry(), Machine{mesh_, device_, collectives_},
            SpaceOptions{.reduce_dtype = reduce_dtype}};
  }
  ValueId cast(const std::string& name, ValueId value, Shape shape,
               DType dtype) {
    return op(name, "aten._to_copy.default", {{"self", ValueRef{value}}},
              tensor(std::move(shape), dtype));
  }
  ValueId op(const std::string& name, const std::string& target,
             std::vector<NamedArgument> arguments, TensorMeta meta) {
    const NodeId node =
        graph_.add_op(name, target, std::move(arguments), {std::move(meta)});
    return graph_.node(node).outputs[0];
  }
  // The edge from what makes a value.
  const SpaceEdge& edge_of(const StrategySpace& space, ValueId value) {
    for (const SpaceEdge& edge : space.edges()) {
      if (edge.value == value) return edge;
    }
    throw std::logic_error("no edge");
  }
  // The first config with this layout at a port.
  int config(const StrategySpace& space, const SpaceEdge& edge, bool source,
             const char* value, const char* gradient) {
    const auto& configs =
        *space.nodes()[source ? edge.source : edge.target].configs;
    for (std::size_t c = 0; c < configs.configs.size(); ++c) {
      const Port& port = source ? space.source_port(edge, static_cast<int>(c))
                                : space.target_port(edge, static_cast<int>(c));
      if (port.value == Layout::parse(value) &&
          port.gradient == Layout::parse(gradient)) {
        return static_cast<int>(c);
      }
    }
    ADD_FAILURE() << value << " with gradient " << gradient;
    return 0;
  }

  Graph graph_;
  ValueId x_, w_, v_, narrow_x_, narrow_w_, wide_v_, fc_;
  Mesh mesh_{{{2, 0}}};
  Device device_;
  Cluster cluster_{"two", device_, {{"gpu", 2, 1e9, 1e-6}}};
  AnalyticCollectives collectives_{cluster_, mesh_};
};

TEST_F(CastSpace, CopiesAreNarrowCastsOfParameters) {
  RulesByNode rules;
  for (const Node& node : graph_.nodes()) {
    rules.push_back(node.kind == NodeKind::kOp
                        ? rule_of(builtin_registry(), graph_, node)
                        : Rule{});
  }
  const auto copies = find_parameter_copies(graph_, rules);
  EXPECT_EQ(copies[narrow_w_], DType::kFloat32);
  for (const ValueId other : {x_, w_, v_, narrow_x_, wide_v_, fc_}) {
    EXPECT_FALSE(copies[other].has_value()) << other;
  }
}

TEST_F(CastSpace, GradientsAreReducedInTheDtypeAskedFor) {
  for (const auto dtype : {ReduceDType::kParameter, ReduceDType::kCompute}) {
    const StrategySpace space = this->space(dtype);
    const bool wide = dtype == ReduceDType::kParameter;
    EXPECT_EQ(space.model().gradient_meta(graph_.value(narrow_w_)).dtype,
              wide ? DType::kFloat32 : DType::kBFloat16);
    const SpaceEdge& edge = edge_of(space, narrow_w_);
    const int stored = config(space, edge, true, "S0", "S0");
    const int used = config(space, edge, false, "R", "P");
    const TensorResharder& narrow =
        space.resharder({{32, 16}, DType::kBFloat16});
    const TensorResharder& reduced =
        space.resharder(space.model().gradient_meta(graph_.value(narrow_w_)));
    const double time_s =
        narrow.time_s(Layout::parse("S0"), Layout::parse("R")) +
        reduced.time_s(Layout::parse("P"), Layout::parse("S0"));
    const EdgeOptions options =
        SpaceProblem(space).options_of(edge, stored, used);
    // Kept after the gather, or cast and gathered again of what is there.
    ASSERT_EQ(options.all().size(), 2);
    EXPECT_DOUBLE_EQ(options.all()[0].time_s, time_s);
    EXPECT_EQ(options.all()[0].memory_bytes, 32 * 16 * 2);
    EXPECT_EQ(options.all()[0].choice.saved, Saved::kKeptTwice);
    EXPECT_EQ(options.all()[1].memory_bytes, 0);
    EXPECT_EQ(options.all()[1].choice.saved, Saved::kRemade);
    EXPECT_GT(options.all()[1].time_s, time_s);
  }
}

TEST_F(CastSpace, WhatIsNotGatheredIsACopyAllTheSame) {
  const StrategySpace space = this->space();
  const SpaceEdge& edge = edge_of(space, narrow_w_);
  const EdgeOptions options = SpaceProblem(space).options_of(
      edge, config(space, edge, true, "S0", "S0"),
      config(space, edge, false, "S0", "S0"));
  ASSERT_EQ(options.all().size(), 1);
  EXPECT_EQ(options.all()[0].memory_bytes, 32 * 16 * 2 / 2);
}

TEST_F(CastSpace, CopiesFollowTheirParameters) {
  const StrategySpace space = this->space();
  EXPECT_TRUE(edge_of(space, w_).follows);
  EXPECT_FALSE(edge_of(space, v_).follows);
  EXPECT_TRUE(space.casts(edge_of(space, narrow_w_)));
  EXPECT_FALSE(space.casts(edge_of(space, w_)));
  EXPECT_FALSE(space.casts(edge_of(space, narrow_x_)));
}

}  // namespace
}  // namespace tensoropt
