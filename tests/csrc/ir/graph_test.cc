#include "ir/graph.h"

#include <gtest/gtest.h>

namespace tensoropt {
namespace {

TensorMeta integers() { return {{4}, DType::kInt64}; }

// out = x[:, i, :, j] and a tensor y after the list.
struct Indexing {
  Graph graph;
  ValueId x, i, j, y;
  NodeId node;

  Indexing() {
    x = graph.add_source(NodeKind::kInput, "x", {{2, 3, 4, 5}});
    i = graph.add_source(NodeKind::kInput, "i", integers());
    j = graph.add_source(NodeKind::kInput, "j", integers());
    y = graph.add_source(NodeKind::kInput, "y", integers());
    const std::vector<ValueRef> indices{{}, {i}, {}, {j}};
    node = graph.add_op(
        "op", "my.index.default",
        {{"self", ValueRef{x}}, {"indices", indices}, {"values", ValueRef{y}}},
        {{{4, 2, 4}}});
  }
};

TEST(Graph, HolesOfAListAreNoOperands) {
  const Indexing indexing;
  const Node& node = indexing.graph.node(indexing.node);
  const std::vector<ValueId> operands{indexing.x, indexing.i, indexing.j,
                                      indexing.y};
  EXPECT_EQ(node.operands, operands);
  EXPECT_EQ(indexing.graph.value(indexing.j).uses[0].operand, 2);
}

TEST(Graph, PositionsOfOperandsSkipHoles) {
  const Indexing indexing;
  const Node& node = indexing.graph.node(indexing.node);
  EXPECT_EQ(node.operand_index("indices"), 1);
  EXPECT_EQ(node.operand_index("values"), 3);
  EXPECT_EQ(node.operand_indices("indices"), (std::vector<int>{-1, 1, -1, 2}));
  EXPECT_TRUE(node.operand_indices("absent").empty());
}

TEST(Graph, NumbersMayBeTruthValues) {
  Graph graph;
  const ValueId x = graph.add_source(NodeKind::kInput, "x", {{2}});
  const NodeId node = graph.add_op(
      "op", "my.fill.default",
      {{"self", ValueRef{x}}, {"yes", Literal{true}}, {"no", Literal{false}}},
      {{{2}}});
  EXPECT_EQ(graph.node(node).double_argument("yes", 7), 1);
  EXPECT_EQ(graph.node(node).double_argument("no", 7), 0);
  EXPECT_EQ(graph.node(node).int_argument("yes", 7), 1);
  EXPECT_EQ(graph.node(node).double_argument("absent", 7), 7);
}

}  // namespace
}  // namespace tensoropt
