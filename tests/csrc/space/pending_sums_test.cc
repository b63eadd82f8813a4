// Where sums may stay pending: by hand, and against the definition on random
// graphs.

#include "space/pending_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/str_format.h"

namespace tensoropt {
namespace {

constexpr std::int64_t kRows = 8;

// Operators over vectors, whose rules are given: one factor for the rows, and
// a reduction where asked for.
struct Net {
  Graph graph;
  RulesByNode rules;

  ValueId input(const std::string& name) {
    const ValueId id = graph.add_source(NodeKind::kInput, name, {{kRows}});
    rules.resize(graph.nodes().size());
    return id;
  }
  ValueId op(const std::string& name, const std::vector<ValueId>& operands,
             std::vector<std::vector<int>> linear_sets, bool reduces = false,
             std::int64_t rows = kRows) {
    std::vector<NamedArgument> arguments;
    Rule rule;
    rule.factors = {{.name = "b", .size = rows}};
    if (reduces) rule.factors.push_back({.name = "k", .size = 4});
    for (std::size_t i = 0; i < operands.size(); ++i) {
      arguments.push_back({str_format("x{}", i), ValueRef{operands[i]}});
      rule.operands.push_back({.dims = {0}});
    }
    rule.outputs = {{.dims = {0}}};
    rule.linear_sets = std::move(linear_sets);
    const NodeId node = graph.add_op(name, str_format("test.{}", name),
                                     std::move(arguments), {{{rows}}});
    rules.resize(graph.nodes().size());
    rules[node] = std::move(rule);
    return graph.node(node).outputs[0];
  }
  const Rule& rule(ValueId value) const {
    return rules[graph.value(value).producer];
  }
  Exclusions remove() {
    Exclusions left_out;
    remove_idle_linear_sets(graph, rules, left_out);
    return left_out;
  }
};

using Sets = std::vector<std::vector<int>>;

TEST(PendingSums, WithoutASumNothingIsLeftPending) {
  Net net;
  const ValueId x = net.op("copy", {net.input("x")}, {});
  const ValueId y = net.op("double", {x}, {{0}});
  const auto left_out = net.remove();
  EXPECT_EQ(net.rule(y).linear_sets, Sets{});
  ASSERT_EQ(left_out.size(), 1u);
  EXPECT_EQ(left_out[0].node, net.graph.value(y).producer);
  EXPECT_EQ(left_out[0].reason, ExclusionReason::kIdleSum);
  EXPECT_EQ(left_out[0].factor, "+0");
}

TEST(PendingSums, OneSumThatIsPassedOnUnchangedIsFinishedBefore) {
  Net net;
  const ValueId sum = net.op("matmul", {net.input("x")}, {}, true);
  const ValueId y = net.op("double", {sum}, {{0}});
  EXPECT_EQ(net.remove().size(), 1u);
  EXPECT_EQ(net.rule(y).linear_sets, Sets{});
}

TEST(PendingSums, TwoSumsAreAddedWhilePending) {
  Net net;
  const ValueId x = net.input("x");
  const ValueId a = net.op("matmul", {x}, {}, true);
  const ValueId b = net.op("other", {x}, {}, true);
  const ValueId sum = net.op("add", {a, b}, {{0, 1}});
  EXPECT_TRUE(net.remove().empty());
  EXPECT_EQ(net.rule(sum).linear_sets, (Sets{{0, 1}}));
}

TEST(PendingSums, ASumWaitsForAnOperatorThatMakesItSmaller) {
  for (const std::int64_t rows : {kRows / 2, kRows}) {
    Net net;
    const ValueId sum = net.op("matmul", {net.input("x")}, {}, true);
    const ValueId scaled = net.op("double", {sum}, {{0}});
    const ValueId cut = net.op("slice", {scaled}, {{0}}, false, rows);
    EXPECT_EQ(net.remove().empty(), rows < kRows);
    const Sets kept = rows < kRows ? Sets{{0}} : Sets{};
    EXPECT_EQ(net.rule(scaled).linear_sets, kept);
    EXPECT_EQ(net.rule(cut).linear_sets, kept);
  }
}

TEST(PendingSums, AValueOfSeveralConsumersIsFinished) {
  Net net;
  const ValueId x = net.input("x");
  const ValueId a = net.op("matmul", {x}, {}, true);
  const ValueId b = net.op("other", {x}, {}, true);
  const ValueId sum = net.op("add", {a, b}, {{0, 1}});
  net.op("more", {a}, {});
  EXPECT_EQ(net.remove().size(), 1u);
  EXPECT_EQ(net.rule(sum).linear_sets, Sets{});
}

TEST(PendingSums, GradientsWaitForEachOtherFromTwoConsumersOn) {
  for (const int consumers : {0, 1, 2, 3}) {
    Net net;
    const ValueId x = net.input("x");
    for (int i = 0; i < consumers; ++i) {
      net.op(str_format("matmul{}", i), {x}, {}, true);  // x lacks k
    }
    net.op("relu", {x}, {});  // lacks nothing, and is linear in nothing
    EXPECT_EQ(
        shares_pending_gradients(net.graph, net.rules, net.graph.value(x)),
        consumers >= 2);
  }
}

TEST(PendingSums, AnOperandOutsideOfALinearSetGetsAPendingGradient) {
  for (const bool inside : {false, true}) {
    Net net;
    const ValueId x = net.input("x");
    const ValueId y = net.input("y");
    const Sets sets{{inside ? 0 : 1}};
    net.op("mul", {x, y}, sets);
    net.op("again", {x, y}, sets);
    const Value& value = net.graph.value(x);
    EXPECT_EQ(shares_pending_gradients(net.graph, net.rules, value), !inside);
  }
}

// --- Random graphs, by definition -------------------------------------------

// Whether the value may come to its only consumer as a pending sum.
bool comes_pending(const Net& net, ValueId value) {
  const Value& it = net.graph.value(value);
  const Node& node = net.graph.node(it.producer);
  if (node.kind != NodeKind::kOp || it.uses.size() != 1) return false;
  const Rule& rule = net.rules[node.id];
  if (rule.factors.size() > 1) return true;
  for (const auto& set : rule.linear_sets) {
    for (const int operand : set) {
      if (comes_pending(net, node.operands[operand])) return true;
    }
  }
  return false;
}

// Whether a set pays in the rules that nothing was removed from yet.
bool pays(const Net& net, const Node& node, const std::vector<int>& set) {
  int pending = 0;
  double before = 0;
  for (const int operand : set) {
    const ValueId value = node.operands[operand];
    pending += comes_pending(net, value) ? 1 : 0;
    before = std::max(before, net.graph.value(value).meta.num_bytes());
  }
  if (pending == 0) return false;
  const Value& output = net.graph.output(node, 0);
  if (pending >= 2 || output.meta.num_bytes() < before) return true;
  for (const Use& use : output.uses) {
    const Node& next = net.graph.node(use.node);
    for (const auto& later : net.rules[use.node].linear_sets) {
      const bool passes =
          std::find(later.begin(), later.end(), use.operand) != later.end();
      if (passes && pays(net, next, later)) return true;
    }
  }
  return false;
}

TEST(PendingSums, SetsThatPayAreThoseOfTheDefinition) {
  std::size_t kept = 0;
  std::size_t removed = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 engine(seed);
    const auto roll = [&](std::size_t n) { return engine() % n; };
    Net net;
    std::vector<ValueId> values{net.input("x")};
    for (int i = 0; i < 8; ++i) {
      // Late ones mostly, so that many values have one consumer.
      const auto any = [&] {
        return values[values.size() - 1 -
                      roll(std::min<std::size_t>(values.size(), 3))];
      };
      std::vector<ValueId> operands{any()};
      if (roll(2) == 0) operands.push_back(any());
      Sets sets;
      if (roll(3) > 0) {
        sets.push_back({0});
        if (operands.size() == 2 && roll(2) == 0) sets[0].push_back(1);
        if (operands.size() == 2 && sets[0].size() == 1) sets.push_back({1});
      }
      values.push_back(net.op(str_format("op{}", i), operands, sets,
                              roll(3) == 0, roll(4) == 0 ? 4 : kRows));
    }
    RulesByNode expected = net.rules;
    std::size_t count = 0;
    for (const Node& node : net.graph.nodes()) {
      if (node.kind != NodeKind::kOp) continue;
      count += std::erase_if(
          expected[node.id].linear_sets,
          [&](const std::vector<int>& set) { return !pays(net, node, set); });
    }
    EXPECT_EQ(net.remove().size(), count);
    for (const Node& node : net.graph.nodes()) {
      EXPECT_EQ(net.rules[node.id].linear_sets, expected[node.id].linear_sets);
      kept += expected[node.id].linear_sets.size();
    }
    removed += count;
  }
  EXPECT_GT(kept, 100u);
  EXPECT_GT(removed, 100u);
}

}  // namespace
}  // namespace tensoropt
