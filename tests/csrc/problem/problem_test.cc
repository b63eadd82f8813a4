#include "problem/problem.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>
#include <vector>

#include "common/check.h"

namespace tensoropt {
namespace {

std::shared_ptr<const NodeTable> two_configs() {
  return std::make_shared<NodeTable>(
      std::vector<std::vector<Choice>>{{{1, 2, 3}}, {{4, 5, 6}}});
}

std::shared_ptr<const EdgeTable> full(int sources, int targets) {
  EdgeTable::Builder builder(sources, targets);
  for (int s = 0; s < sources; ++s) {
    for (int t = 0; t < targets; ++t) builder.add(s, t, {});
  }
  return std::move(builder).build();
}

TEST(EdgeTable, CellsAreSortedAndKeepTheOrderOfTheirChoices) {
  EdgeTable::Builder builder(2, 4);
  builder.add(1, 3, {1, 1, 10});
  builder.add(1, 0, {2, 2, 20});
  builder.add(1, 3, {3, 3, 30});
  const auto table = std::move(builder).build();
  EXPECT_EQ(table->num_cells(), 2);
  EXPECT_EQ(table->num_choices(), 3);
  EXPECT_TRUE(table->row(0).targets.empty());
  ASSERT_EQ(table->row(1).targets.size(), 2u);
  EXPECT_EQ(table->row(1).targets[0], 0);
  EXPECT_EQ(table->row(1).targets[1], 3);
  ASSERT_EQ(table->choices(1, 3).size(), 2u);
  EXPECT_EQ(table->choices(1, 3)[1].tag, 30);
  EXPECT_TRUE(table->choices(1, 1).empty());
  EXPECT_TRUE(table->choices(0, 0).empty());
}

TEST(EdgeTable, RowsMayBeBuiltByThreads) {
  EdgeTable::Builder builder(8, 100);
  {
    std::vector<std::jthread> threads;
    for (int s = 0; s < 8; ++s) {
      threads.emplace_back([&builder, s] {
        for (int t = s; t < 100; t += 3) builder.add(s, t, {0, 0, t});
      });
    }
  }
  const auto table = std::move(builder).build();
  for (int s = 0; s < 8; ++s) {
    EXPECT_EQ(table->choices(s, s + 3).front().tag, s + 3);
  }
}

TEST(Validate, ErrorsNameTheNodeOrEdge) {
  const auto message = [](const Problem& problem) -> std::string {
    try {
      validate(problem);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  const auto two = two_configs();
  EXPECT_EQ(message({{two, two}, {{0, 1, full(2, 2)}}}), "");
  EXPECT_NE(message({{two, nullptr}, {}}).find("node 1"), std::string::npos);
  EXPECT_NE(message({{two, two}, {{0, 2, full(2, 2)}}}).find("edge 0"),
            std::string::npos);
  EXPECT_NE(message({{two, two}, {{1, 1, full(2, 2)}}}).find("itself"),
            std::string::npos);
  EXPECT_NE(message({{two, two}, {{0, 1, full(2, 3)}}}).find("2 x 3"),
            std::string::npos);
  const auto negative = std::make_shared<NodeTable>(
      std::vector<std::vector<Choice>>{{{-1, 0, 0}}});
  EXPECT_NE(message({{two, negative}, {}}).find("node 1"), std::string::npos);
  const auto infinite =
      std::make_shared<NodeTable>(std::vector<std::vector<Choice>>{
          {{0, std::numeric_limits<double>::infinity(), 0}}});
  EXPECT_NE(message({{infinite}, {}}).find("node 0"), std::string::npos);
}

TEST(Restrict, ForbidsConfigsAndSharesWhereMasksAreEqual) {
  const auto two = two_configs();
  const Problem problem{{two, two, two, two}, {{0, 1, full(2, 2)}}};
  const Problem restricted = restrict(
      problem, {{true, false}, {true, false}, {false, true}, {true, true}});
  EXPECT_EQ(restricted.nodes[0], restricted.nodes[1]);
  EXPECT_NE(restricted.nodes[0], restricted.nodes[2]);
  EXPECT_EQ(restricted.nodes[3], two);
  EXPECT_EQ(restricted.edges[0].table, problem.edges[0].table);
  EXPECT_EQ(restricted.nodes[0]->num_configs(), 2);
  EXPECT_EQ(restricted.nodes[0]->choices(0).front().tag, 3);
  EXPECT_TRUE(restricted.nodes[0]->choices(1).empty());
  EXPECT_THROW(restrict(problem, {{true, true}}), UserError);
}

TEST(PartOf, HasTheEdgesBetweenItsNodes) {
  const auto two = two_configs();
  const auto edge = full(2, 2);
  const Problem problem{{two, two, two}, {{0, 1, full(2, 2)}, {1, 2, edge}}};
  const Problem part = part_of(problem, {false, true, true});
  ASSERT_EQ(part.nodes.size(), 2U);
  EXPECT_EQ(part.nodes[0], two);
  ASSERT_EQ(part.edges.size(), 1U);
  EXPECT_EQ(part.edges[0].table, edge);
  EXPECT_EQ(part.edges[0].source, 0);
  EXPECT_EQ(part.edges[0].target, 1);
  EXPECT_THROW(part_of(problem, {true}), UserError);
}

}  // namespace
}  // namespace tensoropt
