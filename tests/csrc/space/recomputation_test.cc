#include "space/recomputation.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "rules/registry.h"
#include "space/small_space.h"
#include "space/space_problem.h"

namespace tensoropt {
namespace {

TensorMeta tensor(Shape shape) { return {std::move(shape), DType::kFloat32}; }

// A Transformer of `blocks` blocks, with two projections instead of attention.
struct Blocks {
  explicit Blocks(int blocks, bool pair_reads_far_back = false,
                  bool has_head = false) {
    ValueId x = linear(
        "in", graph.add_source(NodeKind::kInput, "x", tensor({8, 4, 16})));
    const ValueId first = x;
    for (int i = 0; i < blocks; ++i) {
      ValueId h = op(name("norm_a", i), "aten.layer_norm.default",
                     {{"input", ValueRef{x}}, {"normalized_shape", kShape}});
      const ValueId q = linear(name("q", i), h);
      const ValueId k = linear(name("k", i), h);
      h = binary(name("mix", i), "aten.mul.Tensor", q, k);
      h = linear(name("out", i), h);
      x = binary(name("add_a", i), "aten.add.Tensor", x, h);
      h = op(name("norm_b", i), "aten.layer_norm.default",
             {{"input", ValueRef{x}}, {"normalized_shape", kShape}});
      h = linear(name("up", i), h);
      h = op(name("act", i), "aten.gelu.default", {{"self", ValueRef{h}}});
      h = linear(name("down", i), h);
      x = binary(name("add_b", i), "aten.add.Tensor", x, h);
    }
    if (pair_reads_far_back) x = binary("far", "aten.add.Tensor", x, first);
    if (has_head) {
      x = op("norm", "aten.layer_norm.default",
             {{"input", ValueRef{x}}, {"normalized_shape", kShape}});
      x = linear("head", x);
    }
    const NodeId loss = graph.add_op("loss", "aten.sum.default",
                                     {{"self", ValueRef{x}}}, {tensor({})});
    graph.set_outputs({graph.node(loss).outputs[0]});
    for (const Node& node : graph.nodes()) {
      rules.push_back(node.kind == NodeKind::kOp
                          ? rule_of(builtin_registry(), graph, node)
                          : Rule{});
    }
  }

  static std::string name(const std::string& what, int block) {
    return what + std::to_string(block);
  }
  ValueId op(const std::string& name, const std::string& target,
             std::vector<NamedArgument> arguments) {
    const NodeId node =
        graph.add_op(name, target, std::move(arguments), {tensor({8, 4, 16})});
    return graph.node(node).outputs[0];
  }
  ValueId binary(const std::string& name, const std::string& target, ValueId a,
                 ValueId b) {
    return op(name, target, {{"self", ValueRef{a}}, {"other", ValueRef{b}}});
  }
  ValueId linear(const std::string& name, ValueId x) {
    const ValueId w = graph.add_source(NodeKind::kParameter, name + ".weight",
                                       tensor({16, 16}));
    return op(name, "aten.linear.default",
              {{"input", ValueRef{x}}, {"weight", ValueRef{w}}});
  }
  const Node& named(const std::string& name) const {
    for (const Node& node : graph.nodes()) {
      if (node.name == name) return node;
    }
    throw std::out_of_range(name);
  }

  static inline const Literal kShape{std::vector<std::int64_t>{16}};
  Graph graph;
  RulesByNode rules;
};

std::set<std::string> running_again(const Graph& graph,
                                    const Recomputation& recomputation) {
  std::set<std::string> names;
  for (const Node& node : graph.nodes()) {
    if (recomputation.may_run_again(node.id)) names.insert(node.name);
  }
  return names;
}

std::set<std::string> left_to_chains(const Graph& graph,
                                     const Recomputation& recomputation) {
  std::set<std::string> names;
  for (const Value& value : graph.values()) {
    if (recomputation.may_leave(value.id)) {
      names.insert(graph.node(value.producer).name);
    }
  }
  return names;
}

bool always(const Node&) { return true; }

TEST(Recomputation, NothingRunsAgainUnlessAskedFor) {
  const Blocks model(2);
  const Recomputation none(model.graph);
  EXPECT_TRUE(running_again(model.graph, none).empty());
  EXPECT_TRUE(left_to_chains(model.graph, none).empty());
}

// The input of the first block and the outputs of blocks are what is kept.
TEST(Recomputation, OnlyWhatEndsASegmentIsNeverLeft) {
  const Blocks model(3);
  const Recomputation found(model.graph, model.rules, always);
  const std::set<std::string> left = left_to_chains(model.graph, found);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(left.contains(Blocks::name("norm_a", i))) << i;
    EXPECT_TRUE(left.contains(Blocks::name("add_a", i))) << i;
  }
  // The first segment has the product before the blocks, too.
  EXPECT_FALSE(left.contains("add_b1"));
  EXPECT_LT(left.size(), 3 * 3 + 1);
}

TEST(Recomputation, WhatNobodyAsksForDoesNotRunAgain) {
  const Blocks model(1);
  const Recomputation found(model.graph, model.rules, always);
  const std::set<std::string> again = running_again(model.graph, found);
  for (const char* name : {"norm_a0", "q0", "k0", "mix0", "up0", "act0"}) {
    EXPECT_TRUE(again.contains(name)) << name;
  }
  // Its output is the sum's operand, which needs nothing of it.
  EXPECT_FALSE(again.contains("loss"));
  EXPECT_FALSE(again.contains("down0"));
}

TEST(Recomputation, PairsAreThoseOfSomeWay) {
  const Blocks model(1);
  const Recomputation found(model.graph, model.rules, always);
  const AllowedPairs up =
      found.pairs(model.named("up0").outputs[0]);  // read by act0
  EXPECT_TRUE(up.has(false, false));               // nothing
  EXPECT_TRUE(up.has(false, true));                // selective, or act0 alone
  EXPECT_TRUE(up.has(true, true));                 // full
  EXPECT_FALSE(up.has(true, false));
  const AllowedPairs act = found.pairs(model.named("act0").outputs[0]);
  EXPECT_TRUE(act.has(false, false));
  EXPECT_TRUE(act.has(true, false));
  EXPECT_FALSE(act.has(true, true));
  // Several consumers: the relay decides.
  EXPECT_EQ(found.pairs(model.named("norm_a0").outputs[0]),
            AllowedPairs::all());
}

TEST(Recomputation, OperatorsThatMayNotRepeatDoNot) {
  const Blocks model(1);
  const Recomputation found(model.graph, model.rules, [](const Node& node) {
    return node.name != "act0";
  });
  const std::set<std::string> again = running_again(model.graph, found);
  EXPECT_FALSE(again.contains("act0"));
  // What it read is kept by it, so nobody asks for the product.
  EXPECT_FALSE(again.contains("up0"));
  EXPECT_TRUE(again.contains("mix0"));
}

// The products of the last block are as many as a chain may have, so the head
// is in another one, and the normalisation between them ends the first.
TEST(Recomputation, AChainThatIsLongEnoughMayLeaveItsValueToOneOperator) {
  const Blocks model(1, false, true);
  const Recomputation found(model.graph, model.rules, always);
  EXPECT_TRUE(running_again(model.graph, found).contains("norm"));
  EXPECT_FALSE(running_again(model.graph, found).contains("head"));
  // Without its operand as well, or with that alone.
  const AllowedPairs sum = found.pairs(model.named("add_b0").outputs[0]);
  EXPECT_TRUE(sum.has(true, true));
  EXPECT_TRUE(sum.has(false, true));
}

// Where nothing is narrow there are no segments, and one that is as long as the
// model is none that could be recomputed at a time.
TEST(Recomputation, LongSegmentsLeaveNothing) {
  const Blocks model(3, true);
  const Recomputation found(model.graph, model.rules, always);
  EXPECT_TRUE(left_to_chains(model.graph, found).empty());
  EXPECT_FALSE(running_again(model.graph, found).empty());
}

TEST(Recomputation, ConfigsThatRunAgainKeepNothingAndTakeForwardTwice) {
  SpaceOptions options;
  options.recompute = true;
  const testing::SmallSpace small(options);
  const testing::SmallSpace plain(SpaceOptions{});
  const auto& node = small.space->nodes()[small.space->node_of(small.norm)];
  int again = 0;
  for (std::size_t c = 0; c < node.configs->configs.size(); ++c) {
    const SpaceConfig& config = node.configs->configs[c];
    const CostParts& cost = node.configs->costs[c];
    if (config.saved != Saved::kRemade) continue;
    ++again;
    EXPECT_EQ(cost.kept_bytes, 0);
    const CostParts& once = node.configs->costs[c - 1];
    const SpaceConfig& same = node.configs->configs[c - 1];
    EXPECT_EQ(same.uses, config.uses);
    EXPECT_EQ(same.saved, Saved::kNothing);
    EXPECT_EQ(same.splits, config.splits);
    EXPECT_EQ(config.label, same.label + " again");
    EXPECT_GT(cost.micro_batch_s, once.micro_batch_s);
    EXPECT_LE(cost.micro_batch_s, 2 * once.micro_batch_s);
  }
  EXPECT_GT(again, 0);
  const auto& before = plain.space->nodes()[plain.space->node_of(plain.norm)];
  EXPECT_EQ(node.configs->configs.size(),
            before.configs->configs.size() + again);
}

// Batches of 3 are parts of 2 rows and of one.
TEST(Recomputation, WhatALoneEntryMayKeepIsNotMadeAgain) {
  const testing::SmallSpace small(SpaceOptions{.recompute = true},
                                  /*batch=*/3);
  const StrategySpace& space = *small.space;
  int lone = 0, others_before = 0, others_again = 0;
  for (const SpaceEdge& edge : space.edges()) {
    const auto& sources = space.nodes()[edge.source].configs->configs;
    const auto& targets = space.nodes()[edge.target].configs->configs;
    const SpaceNode& target = space.nodes()[edge.target];
    const bool saves = target.kind == SpaceNodeKind::kOp &&
                       space.rule(target.node).operands[edge.target_port].saved;
    const TensorMeta& meta = space.graph().value(edge.value).meta;
    for (int s = 0; s < std::ssize(sources); ++s) {
      for (int t = 0; t < std::ssize(targets); ++t) {
        const Layout to = targets[t].inputs[edge.target_port].value;
        const EdgeOptions options = SpaceProblem(space).options_of(edge, s, t);
        for (const EdgeOption& option : options.all()) {
          const bool kept = saves || targets[t].saved == Saved::kRemade;
          const bool before = option.choice.saved == Saved::kRemade;
          const bool again = kept && sources[s].saved == Saved::kRemade;
          if (has_lone_entry(meta, to, small.mesh)) {
            ++lone;
            EXPECT_FALSE(before || again) << targets[t].label << " reads what "
                                          << sources[s].label << " makes";
          } else {
            others_before += before ? 1 : 0;
            others_again += again ? 1 : 0;
          }
        }
      }
    }
  }
  EXPECT_GT(lone, 0);
  EXPECT_GT(others_before, 0);
  EXPECT_GT(others_again, 0);
}

}  // namespace
}  // namespace tensoropt
