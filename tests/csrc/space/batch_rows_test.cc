#include "space/batch_rows.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/str_format.h"
#include "space/space.h"

namespace tensoropt {
namespace {

// Of an input [5, 8, 6] with 8 rows in dim 1, and a parameter [6, 8].
class BatchRowsTest : public ::testing::Test {
 protected:
  BatchRowsTest() {
    x_ = graph_.add_source(NodeKind::kInput, "x", {{5, 8, 6}});
    w_ = graph_.add_source(NodeKind::kParameter, "w", {{8, 6}});
  }

  ValueId op(const std::string& target, std::vector<NamedArgument> arguments,
             Shape shape) {
    const NodeId node =
        graph_.add_op(str_format("op_{}", graph_.nodes().size()), target,
                      std::move(arguments), {{std::move(shape)}});
    return graph_.node(node).outputs[0];
  }

  BatchRows rows(ValueId value) const {
    const Registry& registry = builtin_registry();
    RulesByNode rules(graph_.nodes().size());
    for (const Node& node : graph_.nodes()) {
      if (node.kind == NodeKind::kOp) {
        rules[node.id] = rule_of(registry, graph_, node);
      }
    }
    return find_batch_rows(graph_, rules, registry, [](const Node& node) {
      return node.name == "x" ? 1 : -1;
    })[value];
  }

  Graph graph_;
  ValueId x_, w_;
};

TEST_F(BatchRowsTest, RulesCarryThem) {
  const ValueId y =
      op("aten.linear.default",
         {{"input", ValueRef{x_}}, {"weight", ValueRef{w_}}}, {5, 8, 8});
  EXPECT_EQ(rows(x_).dim(), 1);
  EXPECT_EQ(rows(y).dims, 0b010u);
  const ValueId moved =
      op("aten.permute.default",
         {{"self", ValueRef{y}},
          {"dims", Literal{std::vector<std::int64_t>{2, 0, 1}}}},
         {8, 5, 8});
  EXPECT_EQ(rows(moved).dims, 0b100u);
}

TEST_F(BatchRowsTest, SumsAndReshapesWithoutBlocksEndThem) {
  const ValueId sum = op("aten.sum.default", {{"self", ValueRef{x_}}}, {});
  EXPECT_EQ(rows(sum).dim(), -1);
  EXPECT_TRUE(rows(sum).depends);
  const auto reshaped = [&](Shape shape) {
    const Literal size{std::vector<std::int64_t>(shape)};
    return op("aten.reshape.default", {{"self", ValueRef{x_}}, {"shape", size}},
              std::move(shape));
  };
  EXPECT_EQ(rows(reshaped({40, 6})).dim(), -1);
  EXPECT_EQ(rows(reshaped({5, 48})).dim(), 1);
  EXPECT_EQ(rows(reshaped({5, 2, 4, 6})).dim(), 1);
}

TEST_F(BatchRowsTest, WhatDoesNotDependOnThemHasNone) {
  const ValueId table =
      op("aten.exp.default", {{"self", ValueRef{w_}}}, {8, 6});
  EXPECT_FALSE(rows(table).depends);
  EXPECT_EQ(rows(table).dim(), -1);
}

TEST_F(BatchRowsTest, OperatorsThatMoveThemKeepTheirPlace) {
  const ValueId flipped = op(
      "aten.flip.default",
      {{"self", ValueRef{x_}}, {"dims", Literal{std::vector<std::int64_t>{1}}}},
      {5, 8, 6});
  EXPECT_EQ(rows(flipped).dim(), 1);
  const ValueId unknown = op("my.op.default", {{"self", ValueRef{x_}}}, {5, 8});
  EXPECT_EQ(rows(unknown).dim(), 1);
  const ValueId other = op("my.op.default", {{"self", ValueRef{x_}}}, {5, 7});
  EXPECT_EQ(rows(other).dim(), -1);
  EXPECT_TRUE(rows(other).depends);
}

TEST_F(BatchRowsTest, TheFirstOfSeveralDimsCounts) {
  const ValueId left = op("aten.select.int",
                          {{"self", ValueRef{x_}},
                           {"dim", Literal{std::int64_t{0}}},
                           {"index", Literal{std::int64_t{0}}}},
                          {8, 6});
  const ValueId alike =
      op("aten.linear.default",
         {{"input", ValueRef{left}}, {"weight", ValueRef{left}}}, {8, 8});
  EXPECT_EQ(rows(alike).dims, 0b11u);
  EXPECT_EQ(rows(alike).dim(), 0);
}

}  // namespace
}  // namespace tensoropt
