#include "cost/edge_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

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
                                  const Port& to,
                                  const StepShape& shape = {}) const {
    const EdgeWays ways =
        edge_ways(edge, mesh_, resharder_, resharder_, from, to);
    const auto all = edge_options(ways, Projection(shape, device_));
    return {all.all().begin(), all.all().end()};
  }
  double time_s(const Layout& from, const Layout& to) const {
    return resharder_.time_s(from, to);
  }

  Mesh mesh_{{{2, 0}}};
  UnitTimes model_;
  Device device_;
  TensorResharder resharder_{mesh_, model_, device_, kMeta.shape, 4};
  // Gathered for the consumer; the gradient is reduced and scattered.
  Port rows_{kRows, kRows};
  Port whole_{kReplicated, kPending};
  double gather_s_ = time_s(kRows, kReplicated);
  double scatter_s_ = time_s(kPending, kRows);
};

void expect_option(const EdgeOption& option, double memory_bytes, double time_s,
                   Saved saved) {
  EXPECT_EQ(option.memory_bytes, memory_bytes);
  EXPECT_DOUBLE_EQ(option.time_s, time_s);
  EXPECT_EQ(option.choice.saved, saved) << edge_word(option.choice.saved);
}

TEST_F(EdgeCost, NothingSavedIsTheTimeOfBothReshards) {
  const auto found = options({kMeta, /*backward=*/true}, rows_, whole_);
  ASSERT_EQ(found.size(), 1);
  expect_option(found[0], 0, gather_s_ + scatter_s_, Saved::kNothing);
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
  expect_option(found[0], kWhole, once_s, Saved::kKept);
  expect_option(found[1], kWhole / 2, once_s + 8 + gather_s_, Saved::kRemade);
}

TEST_F(EdgeCost, WithoutGradientOnlyTheValueMoves) {
  const auto found = options({kMeta, /*backward=*/false}, rows_, whole_);
  ASSERT_EQ(found.size(), 1);
  expect_option(found[0], 0, gather_s_, Saved::kNothing);
}

TEST_F(EdgeCost, EqualLayoutsKeepTheOneCopy) {
  EdgeSpec edge{kMeta, true, /*consumer_saves=*/true};
  auto found = options(edge, rows_, rows_);
  ASSERT_EQ(found.size(), 1);
  expect_option(found[0], kWhole / 2, 0, Saved::kNothing);
  edge.producer_keeps = true;  // that copy is paid for
  found = options(edge, rows_, rows_);
  ASSERT_EQ(found.size(), 1);
  expect_option(found[0], 0, 0, Saved::kNothing);
}

TEST_F(EdgeCost, GatheredValueIsKeptAfterOrGatheredAgain) {
  const EdgeSpec edge{kMeta, true, /*consumer_saves=*/true};
  const auto found = options(edge, rows_, whole_);
  ASSERT_EQ(found.size(), 2);
  expect_option(found[0], kWhole, gather_s_ + scatter_s_, Saved::kKept);
  expect_option(found[1], kWhole / 2, 2 * gather_s_ + scatter_s_,
                Saved::kRemade);
}

TEST_F(EdgeCost, CopyThatTheProducerKeepsCostsNothing) {
  const EdgeSpec edge{kMeta, true, true, /*producer_keeps=*/true};
  const auto found = options(edge, rows_, whole_);
  ASSERT_EQ(found.size(), 2);
  expect_option(found[0], kWhole, gather_s_ + scatter_s_, Saved::kKeptTwice);
  expect_option(found[1], 0, 2 * gather_s_ + scatter_s_, Saved::kRemade);
}

TEST_F(EdgeCost, SmallerCopyAfterLeavesNoReasonToReplay) {
  const EdgeSpec edge{kMeta, true, /*consumer_saves=*/true};
  const Port from{kReplicated, kReplicated};
  const auto found = options(edge, from, rows_);
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].memory_bytes, kWhole / 2);
  EXPECT_EQ(found[0].choice.saved, Saved::kKept);
}

TEST_F(EdgeCost, ReplayMayBeForbidden) {
  EdgeSpec edge{kMeta, true, true, /*producer_keeps=*/true};
  edge.may_replay = false;
  const auto found = options(edge, rows_, whole_);
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].choice.saved, Saved::kKeptTwice);
}

// All that a step of several micro-batches can do on the edge of a parameter:
// the value is gathered in each of them, and again in backward or not, or once;
// its gradient is reduced in each of them, or once.
TEST_F(EdgeCost, MicroBatchesReshardParametersInEachOrOnce) {
  constexpr int kCount = 4;
  // An addition reads two numbers and writes one.
  const double per_byte_s = 3 / device_.copy_bytes_per_s();
  EdgeSpec edge{kMeta, true, /*consumer_saves=*/true, /*producer_keeps=*/true};
  edge.of_parameter = true;
  struct Way {
    double memory_bytes;
    double time_s;
  };
  const std::vector<Way> values = {{kWhole, kCount * gather_s_},
                                   {0, 2 * kCount * gather_s_},
                                   {kWhole, gather_s_}};
  const double added_s = (kCount - 1) * per_byte_s;
  const std::vector<Way> gradients = {
      {0, kCount * scatter_s_ + added_s * kWhole / 2},
      {kWhole / 2, scatter_s_ + added_s * kWhole}};
  std::vector<Way> all;
  for (const Way& value : values) {
    for (const Way& gradient : gradients) {
      all.push_back({value.memory_bytes + gradient.memory_bytes,
                     value.time_s + gradient.time_s});
    }
  }
  const auto is_best = [&](const Way& way) {
    return std::none_of(all.begin(), all.end(), [&](const Way& other) {
      return other.memory_bytes <= way.memory_bytes &&
             other.time_s <= way.time_s &&
             (other.memory_bytes < way.memory_bytes ||
              other.time_s < way.time_s);
    });
  };
  const auto found = options(edge, rows_, whole_, {.micro_batches = kCount});
  EXPECT_EQ(static_cast<std::ptrdiff_t>(found.size()),
            std::count_if(all.begin(), all.end(), is_best));
  for (const EdgeOption& option : found) {
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const Way& way) {
      return is_best(way) && way.memory_bytes == option.memory_bytes &&
             std::abs(way.time_s - option.time_s) < 1e-12;
    }));
  }
}

TEST_F(EdgeCost, MicroBatchesCrossOtherEdgesEachTime) {
  EdgeSpec edge{kMeta, true, /*consumer_saves=*/true};
  const auto found = options(edge, rows_, whole_, {.micro_batches = 3});
  ASSERT_EQ(found.size(), 2);
  expect_option(found[0], kWhole, 3 * (gather_s_ + scatter_s_), Saved::kKept);
  expect_option(found[1], kWhole / 2, 3 * (2 * gather_s_ + scatter_s_),
                Saved::kRemade);
}

TEST_F(EdgeCost, WhatIsKeptCountsForEachMicroBatchInFlightWhatIsHeldOnce) {
  EdgeSpec edge{kMeta, false, /*consumer_saves=*/true, /*producer_keeps=*/true};
  edge.of_parameter = true;
  const StepShape shape{.micro_batches = 4, .in_flight = 3};
  const auto found = options(edge, rows_, whole_, shape);
  ASSERT_EQ(found.size(), 2);
  expect_option(found[0], 0, 4 * 2 * gather_s_, Saved::kRemade);
  expect_option(found[1], kWhole, gather_s_, Saved::kKeptTwice);
  edge.of_parameter = false;
  const auto others = options(edge, rows_, whole_, shape);
  ASSERT_EQ(others.size(), 2);
  expect_option(others[0], 3 * kWhole, 4 * gather_s_, Saved::kKeptTwice);
}

// Of one micro-batch nothing is held or summed for others.
TEST_F(EdgeCost, OneMicroBatchSharesNothing) {
  EdgeSpec edge{kMeta, true, /*consumer_saves=*/true};
  edge.of_parameter = true;
  const EdgeWays ways =
      edge_ways(edge, mesh_, resharder_, resharder_, rows_, whole_);
  for (const int count : {1, 2}) {
    const Projection step({.micro_batches = count}, device_);
    EXPECT_EQ(is_option({Saved::kKept, true, true}, ways, step), count > 1);
    EXPECT_TRUE(is_option({Saved::kKept, false, false}, ways, step));
    const auto options = edge_options(ways, step);
    for (const EdgeOption& option : options.all()) {
      EXPECT_TRUE(count > 1 || !(option.choice.held || option.choice.summed));
    }
  }
}

TEST_F(EdgeCost, ATagSaysWhatWasChosen) {
  for (const Saved saved : kAllSaved) {
    EXPECT_EQ((EdgeChoice{saved}.tag()), static_cast<std::int32_t>(saved));
    for (const bool held : {false, true}) {
      for (const bool summed : {false, true}) {
        const EdgeChoice choice{saved, held, summed};
        EXPECT_EQ(EdgeChoice::of(choice.tag()), choice);
      }
    }
  }
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

TEST(Saved, WordsOfEdges) {
  EXPECT_EQ(edge_word(Saved::kNothing), "none");
  EXPECT_EQ(edge_word(Saved::kRemade), "before");
  EXPECT_EQ(edge_word(Saved::kKept), "after");
  EXPECT_EQ(edge_word(Saved::kKeptTwice), "both");
}

}  // namespace
}  // namespace tensoropt
