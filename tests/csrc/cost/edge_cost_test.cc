#include "cost/edge_cost.h"

#include <gtest/gtest.h>

namespace tensoropt {
namespace {

class UnitTimes : public CollectiveModel {
 public:
  double time_s(Collective, AxisSet axes, double) const override {
    return axes == 0 ? 0 : 1;
  }
};

const TensorMeta kMeta{{8, 4}, DType::kFloat32};
constexpr double kWhole = 8 * 4 * 4;
const Layout kReplicated = Layout::parse("R");
const Layout kRows = Layout::parse("S0");
const Layout kPending = Layout::parse("P");

class EdgeCost : public ::testing::Test {
 protected:
  std::vector<EdgeOption> options(const EdgeSpec& edge, const Port& from,
                                  const Port& to) const {
    const auto all =
        edge_options(edge, mesh_, resharder_, resharder_, from, to);
    return {all.all().begin(), all.all().end()};
  }
  double time_s(const Layout& from, const Layout& to) const {
    return resharder_.time_s(from, to);
  }

  Mesh mesh_{{{2, 0}}};
  UnitTimes model_;
  TensorResharder resharder_{mesh_, model_, Device{}, kMeta.shape, 4};
  // Gathered for the consumer; the gradient is reduced and scattered.
  Port rows_{kRows, kRows};
  Port whole_{kReplicated, kPending};
  double gather_s_ = time_s(kRows, kReplicated);
  double scatter_s_ = time_s(kPending, kRows);
};

void expect_option(const EdgeOption& option, double memory_bytes, double time_s,
                   Reuse reuse) {
  EXPECT_EQ(option.memory_bytes, memory_bytes);
  EXPECT_DOUBLE_EQ(option.time_s, time_s);
  EXPECT_EQ(option.reuse, reuse) << to_string(option.reuse);
}

TEST_F(EdgeCost, NothingSavedIsTheTimeOfBothReshards) {
  const auto found = options({kMeta, /*backward=*/true}, rows_, whole_);
  ASSERT_EQ(found.size(), 1);
  expect_option(found[0], 0, gather_s_ + scatter_s_, Reuse::kNone);
}

TEST_F(EdgeCost, WhatIsNotExposedTakesNoTimeButItsOverhead) {
  EdgeSpec edge{kMeta, /*backward=*/true};
  edge.consumer_saves = true;
  edge.overhead_s = 8;
  edge.forward_exposed = 0.25;
  edge.backward_exposed = 0.5;
  const auto found = options(edge, rows_, whole_);
  ASSERT_EQ(found.size(), 2);
  const double once_s = 16 + 0.25 * gather_s_ + 0.5 * scatter_s_;
  expect_option(found[0], kWhole, once_s, Reuse::kAfter);
  expect_option(found[1], kWhole / 2, once_s + 8 + gather_s_, Reuse::kBefore);
}

TEST_F(EdgeCost, WithoutGradientOnlyTheValueMoves) {
  const auto found = options({kMeta, /*backward=*/false}, rows_, whole_);
  ASSERT_EQ(found.size(), 1);
  expect_option(found[0], 0, gather_s_, Reuse::kNone);
}

TEST_F(EdgeCost, EqualLayoutsKeepTheOneCopy) {
  EdgeSpec edge{kMeta, true, /*consumer_saves=*/true};
  auto found = options(edge, rows_, rows_);
  ASSERT_EQ(found.size(), 1);
  expect_option(found[0], kWhole / 2, 0, Reuse::kNone);
  edge.producer_keeps = true;  // that copy is paid for
  found = options(edge, rows_, rows_);
  ASSERT_EQ(found.size(), 1);
  expect_option(found[0], 0, 0, Reuse::kNone);
}

TEST_F(EdgeCost, GatheredValueIsKeptAfterOrGatheredAgain) {
  const EdgeSpec edge{kMeta, true, /*consumer_saves=*/true};
  const auto found = options(edge, rows_, whole_);
  ASSERT_EQ(found.size(), 2);
  expect_option(found[0], kWhole, gather_s_ + scatter_s_, Reuse::kAfter);
  expect_option(found[1], kWhole / 2, 2 * gather_s_ + scatter_s_,
                Reuse::kBefore);
}

TEST_F(EdgeCost, CopyThatTheProducerKeepsCostsNothing) {
  const EdgeSpec edge{kMeta, true, true, /*producer_keeps=*/true};
  const auto found = options(edge, rows_, whole_);
  ASSERT_EQ(found.size(), 2);
  expect_option(found[0], kWhole, gather_s_ + scatter_s_, Reuse::kBoth);
  expect_option(found[1], 0, 2 * gather_s_ + scatter_s_, Reuse::kBefore);
}

TEST_F(EdgeCost, SmallerCopyAfterLeavesNoReasonToReplay) {
  const EdgeSpec edge{kMeta, true, /*consumer_saves=*/true};
  const Port from{kReplicated, kReplicated};
  const auto found = options(edge, from, rows_);
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].memory_bytes, kWhole / 2);
  EXPECT_EQ(found[0].reuse, Reuse::kAfter);
}

TEST_F(EdgeCost, ReplayMayBeForbidden) {
  EdgeSpec edge{kMeta, true, true, /*producer_keeps=*/true};
  edge.may_replay = false;
  const auto found = options(edge, rows_, whole_);
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].reuse, Reuse::kBoth);
}

TEST_F(EdgeCost, NoOptionIsDominated) {
  for (const bool saves : {false, true}) {
    for (const bool keeps : {false, true}) {
      for (const Layout& from : {kReplicated, kRows, kPending}) {
        for (const Layout& to : {kReplicated, kRows}) {
          const EdgeSpec edge{kMeta, false, saves, keeps};
          const auto found = options(edge, {from, from}, {to, to});
          ASSERT_FALSE(found.empty());
          if (found.size() < 2) continue;
          EXPECT_GT(found[0].memory_bytes, found[1].memory_bytes);
          EXPECT_LT(found[0].time_s, found[1].time_s);
        }
      }
    }
  }
}

TEST(Reuse, Names) {
  EXPECT_EQ(to_string(Reuse::kNone), "none");
  EXPECT_EQ(to_string(Reuse::kBefore), "before");
  EXPECT_EQ(to_string(Reuse::kAfter), "after");
  EXPECT_EQ(to_string(Reuse::kBoth), "both");
}

}  // namespace
}  // namespace tensoropt
