// Searches small enough to be checked by hand, and the options.

#include "search/frontier_tracking.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/check.h"
#include "problem/random_problem.h"
#include "problem/random_strategy.h"
#include "search/checks.h"

namespace tensoropt::testing {
namespace {

using NodePtr = std::shared_ptr<const NodeTable>;

NodePtr node(std::vector<std::vector<Choice>> choices) {
  return std::make_shared<NodeTable>(std::move(choices));
}

// Equal configs are free, a change costs `time` or, kept, `memory`.
std::shared_ptr<const EdgeTable> change(int configs, double memory,
                                        double time) {
  EdgeTable::Builder builder(configs, configs);
  for (int s = 0; s < configs; ++s) {
    for (int t = 0; t < configs; ++t) {
      if (s == t) {
        builder.add(s, t, {0, 0, 10});
      } else {
        builder.add(s, t, {0, time, 11});
        builder.add(s, t, {memory, 0, 12});
      }
    }
  }
  return std::move(builder).build();
}

TEST(Search, OneNodeGivesItsOwnFrontier) {
  const Problem problem{
      {node({{{4, 1, 7}, {5, 1, 8}}, {{1, 4, 9}}, {{2, 2, 5}}, {}})}, {}};
  const SearchResult result = search(problem, {});
  EXPECT_EQ(costs(result), (std::vector<Cost>{{1, 4}, {2, 2}, {4, 1}}));
  EXPECT_EQ(result.unroll(0).config, std::vector{1});
  EXPECT_EQ(result.unroll(2).node_tag, std::vector{7});
}

TEST(Search, EdgeChoicesAreUnrolled) {
  const NodePtr small_or_fast = node({{{1, 8, 1}}, {{8, 1, 2}}});
  const NodePtr fast_or_small = node({{{8, 1, 3}}, {{1, 8, 4}}});
  const Problem problem{{small_or_fast, fast_or_small},
                        {{0, 1, change(2, 3, 5)}}};
  // Equal configs: (9, 9). Different: 2 or 16, with time or memory on top.
  const SearchResult result = search(problem, {});
  EXPECT_EQ(costs(result),
            (std::vector<Cost>{{2, 21}, {5, 16}, {9, 9}, {16, 7}, {19, 2}}));
  const Strategy last = result.unroll(4);
  EXPECT_EQ(last.config, (std::vector{1, 0}));
  EXPECT_EQ(last.node_tag, (std::vector{2, 3}));
  EXPECT_EQ(last.edge_tag, std::vector{12});
}

TEST(Search, NodesWithoutEdgesAreSummed) {
  const NodePtr table = node({{{1, 3, 0}}, {{3, 1, 0}}});
  const Problem problem{{table, table, table}, {}};
  EXPECT_EQ(costs(search(problem, {})),
            (std::vector<Cost>{{3, 9}, {5, 7}, {7, 5}, {9, 3}}));
}

TEST(Search, NodesOfOneConfigFoldTheirEdgesExactly) {
  // A star whose centre has one config, and degree 6.
  const NodePtr centre = node({{{1, 1, 0}, {0, 2, 1}}});
  const NodePtr leaf = node({{{0, 2, 0}}, {{2, 0, 0}}});
  Problem problem{{centre}, {}};
  EdgeTable::Builder builder(1, 2);
  builder.add(0, 0, {0, 0, 0});
  builder.add(0, 1, {1, 0, 1});
  const auto edge = std::move(builder).build();
  for (int i = 1; i <= 6; ++i) {
    problem.nodes.push_back(leaf);
    problem.edges.push_back({0, i, edge});
  }
  const SearchResult result = search(problem, {});
  EXPECT_EQ(costs(result), brute_force(problem));
  EXPECT_EQ(result.stats().conditioned_eliminations, 0);
}

TEST(Search, EachKindOfEliminationIsUsedWhereItBelongs) {
  Dice dice(1);
  const RandomTables how{.max_configs = 3};
  const auto stats = [&](int nodes, const Pairs& pairs) {
    Problem problem;
    for (int n = 0; n < nodes; ++n) {
      problem.nodes.push_back(random_node(dice, how, 3));
    }
    for (const auto& [a, b] : pairs) {
      problem.edges.push_back({a, b, random_edge(dice, how, 3, 3)});
    }
    const SearchResult result = search(problem, {});
    EXPECT_EQ(costs(result), brute_force(problem));
    return result.stats();
  };
  const SearchStats tree = stats(5, {{0, 1}, {1, 2}, {3, 1}, {1, 4}});
  EXPECT_EQ(tree.branch_eliminations, 5);
  const SearchStats ring_of_five = stats(5, ring(5));
  EXPECT_EQ(ring_of_five.conditioned_eliminations, 0);
  EXPECT_GE(ring_of_five.node_eliminations, 2);
  const SearchStats doubled = stats(2, {{0, 1}, {1, 0}, {0, 1}});
  EXPECT_EQ(doubled.branch_eliminations, 2);
  const SearchStats clique = stats(4, complete(4));
  EXPECT_GE(clique.conditioned_eliminations, 1);
}

TEST(Search, ForbiddenEverywhereIsAnErrorThatNamesANode) {
  const NodePtr two = node({{{0, 0, 0}}, {{0, 0, 0}}});
  EdgeTable::Builder nothing(2, 2);
  const Problem problem{{two, two}, {{0, 1, std::move(nothing).build()}}};
  try {
    search(problem, {});
    FAIL() << "expected an error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("node"), std::string::npos)
        << error.what();
  }
}

// Consistent edge by edge, but not all around: x = y, y = z, z != x.
TEST(Search, ContradictionAroundACycleIsAnError) {
  const NodePtr two = node({{{0, 0, 0}}, {{0, 0, 0}}});
  EdgeTable::Builder equal(2, 2);
  EdgeTable::Builder unequal(2, 2);
  for (int i = 0; i < 2; ++i) {
    equal.add(i, i, {});
    unequal.add(i, 1 - i, {});
  }
  const auto same = std::move(equal).build();
  const auto other = std::move(unequal).build();
  const Problem problem{{two, two, two},
                        {{0, 1, same}, {1, 2, same}, {2, 0, other}}};
  EXPECT_THROW(search(problem, {}), UserError);
  SearchOptions options;
  options.use_bounds = false;
  EXPECT_THROW(search(problem, options), UserError);
  EXPECT_THROW(random_strategy(problem, 1), UserError);
}

TEST(Search, OptionsAreValidated) {
  const Problem problem{{node({{{0, 0, 0}}})}, {}};
  SearchOptions negative;
  negative.epsilon = -1;
  EXPECT_THROW(search(problem, negative), UserError);
  SearchOptions limit;
  limit.memory_limit = -1;
  EXPECT_THROW(search(problem, limit), UserError);
  EXPECT_THROW(search(Problem{}, {}), UserError);
  const SearchResult result = search(problem, {});
  EXPECT_THROW(result.unroll(1), UserError);
}

// The result keeps what it needs: the problem may go.
TEST(Search, ResultOutlivesTheProblem) {
  std::vector<SearchResult> results;
  {
    const Problem problem{{node({{{4, 1, 7}}, {{1, 4, 9}}})}, {}};
    results.push_back(search(problem, {}));
  }
  EXPECT_EQ(results[0].unroll(0).node_tag, std::vector{9});
}

TEST(Evaluate, GivesTheFrontierOverAllChoicesOfTheConfigs) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const Problem problem =
        random_problem(dice, {}, 6, series_parallel(dice, 6));
    const std::vector<int> config = random_strategy(problem, seed).config;
    std::vector<Cost> found;
    for (const Point& p : evaluate(problem, config)) {
      found.push_back({p.memory, p.time});
    }
    EXPECT_EQ(found, costs_of_configs(problem, config));
  }
}

TEST(Evaluate, ErrorsNameWhatForbidsTheConfigs) {
  EdgeTable::Builder builder(2, 2);
  builder.add(0, 0, {});
  const Problem problem{{node({{{}}, {{}}}), node({{{}}, {{}}})},
                        {{0, 1, std::move(builder).build()}}};
  EXPECT_EQ(evaluate(problem, {0, 0}).size(), 1u);
  try {
    evaluate(problem, {0, 1});
    FAIL() << "expected an error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("edge 0"), std::string::npos);
  }
  EXPECT_THROW(evaluate(problem, {0, 2}), UserError);
  EXPECT_THROW(evaluate(problem, {0}), UserError);
}

}  // namespace
}  // namespace tensoropt::testing
