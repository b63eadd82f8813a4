#include <gtest/gtest.h>

#include <random>

#include "comm/collective.h"
#include "common/check.h"

namespace tensoropt {
namespace {

constexpr Collective kGather = Collective::kAllGather;

// Knows nothing but its own answer.
class Constant : public CollectiveModel {
 public:
  double time_s(Collective, AxisSet, double) const override { return 42; }
};

class MeasuredTest : public testing::Test {
 protected:
  MeasuredCollectives make(const CollectiveTable& table) const {
    return {mesh_, table, fallback_};
  }

  // Axes 1 and 2 are alike.
  Mesh mesh_{{{2, 0}, {2, 1}, {2, 1}}};
  Constant fallback_;
};

TEST_F(MeasuredTest, HitsItsSamplesAndIsLogLinearBetween) {
  const auto model =
      make({{{kGather, 0b1}, {{1024, 1e-5}, {4096, 4e-5}, {16384, 8e-5}}}});
  EXPECT_NEAR(model.time_s(kGather, 0b1, 1024), 1e-5, 1e-15);
  EXPECT_NEAR(model.time_s(kGather, 0b1, 4096), 4e-5, 1e-15);
  EXPECT_NEAR(model.time_s(kGather, 0b1, 2048), 2e-5, 1e-15);
  // Half way in log scale: the geometric mean.
  EXPECT_NEAR(model.time_s(kGather, 0b1, 8192), std::sqrt(4e-5 * 8e-5), 1e-15);
}

TEST_F(MeasuredTest, GoesOnWithTheBandwidthOfTheEnds) {
  const auto model = make({{{kGather, 0b1}, {{1000, 3e-6}, {2000, 5e-6}}}});
  EXPECT_NEAR(model.time_s(kGather, 0b1, 4000), 9e-6, 1e-15);
  EXPECT_NEAR(model.time_s(kGather, 0b1, 500), 2e-6, 1e-15);
  EXPECT_NEAR(model.time_s(kGather, 0b1, 0), 1e-6, 1e-15);
}

TEST_F(MeasuredTest, OneSampleIsLatencyBelowAndBandwidthAbove) {
  const auto model = make({{{kGather, 0b1}, {{1000, 2e-6}}}});
  EXPECT_NEAR(model.time_s(kGather, 0b1, 10), 2e-6, 1e-15);
  EXPECT_NEAR(model.time_s(kGather, 0b1, 3000), 6e-6, 1e-15);
}

TEST_F(MeasuredTest, AlikeAxesShareAnEntry) {
  const auto model = make({{{kGather, 0b011}, {{1000, 2e-6}}}});
  EXPECT_TRUE(model.is_measured(kGather, 0b101));
  EXPECT_EQ(model.time_s(kGather, 0b101, 1000), 2e-6);
  EXPECT_FALSE(model.is_measured(kGather, 0b110));
  EXPECT_FALSE(model.is_measured(Collective::kAllReduce, 0b011));
}

TEST_F(MeasuredTest, ItsOwnEntryComesBeforeThatOfAlikeAxes) {
  const auto model = make(
      {{{kGather, 0b010}, {{1000, 1e-6}}}, {{kGather, 0b100}, {{1000, 2e-6}}}});
  EXPECT_EQ(model.time_s(kGather, 0b010, 1000), 1e-6);
  EXPECT_EQ(model.time_s(kGather, 0b100, 1000), 2e-6);
}

TEST_F(MeasuredTest, MissingEntriesUseTheFallback) {
  const auto model = make({{{kGather, 0b010}, {{1000, 1e-6}}}});
  EXPECT_EQ(model.time_s(kGather, 0b001, 1000), 42);
  EXPECT_EQ(model.time_s(kGather, 0, 1000), 0);
}

TEST_F(MeasuredTest, MonotoneForNoisySamples) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<double> noise(0.2, 2);
    std::vector<CollectiveSample> samples;
    for (double bytes = 16; bytes < 1e7; bytes *= 4) {
      samples.push_back({bytes, noise(rng) * (1e-5 + bytes * 1e-9)});
    }
    const auto model = make({{{kGather, 0b1}, samples}});
    double before = 0;
    for (double bytes = 1; bytes < 1e9; bytes *= 1.3) {
      const double time_s = model.time_s(kGather, 0b1, bytes);
      EXPECT_GE(time_s, before * (1 - 1e-12)) << "seed " << seed;
      EXPECT_GT(time_s, 0) << "seed " << seed;
      before = time_s;
    }
  }
}

TEST_F(MeasuredTest, OneSampleThatIsTooLongDoesNoHarm) {
  const auto model =
      make({{{kGather, 0b1},
             {{1000, 1e-6}, {2000, 50e-6}, {4000, 4e-6}, {8000, 8e-6}}}});
  EXPECT_EQ(model.time_s(kGather, 0b1, 1000), 1e-6);
  EXPECT_EQ(model.time_s(kGather, 0b1, 2000), 4e-6);
  EXPECT_EQ(model.time_s(kGather, 0b1, 4000), 4e-6);
  EXPECT_EQ(model.time_s(kGather, 0b1, 8000), 8e-6);
}

TEST_F(MeasuredTest, RejectsWhatCannotBeATable) {
  EXPECT_THROW(make({{{kGather, 0b1}, {}}}), UserError);
  EXPECT_THROW(make({{{kGather, 0b1}, {{0, 1e-6}}}}), UserError);
  EXPECT_THROW(make({{{kGather, 0b1}, {{8, 0}}}}), UserError);
  EXPECT_THROW(make({{{kGather, 0b1}, {{8, 1e-6}, {8, 2e-6}}}}), UserError);
  EXPECT_THROW(make({{{kGather, 0b1000}, {{8, 1e-6}}}}), UserError);
  EXPECT_THROW(make({{{kGather, 0}, {{8, 1e-6}}}}), UserError);
}

TEST(DelayedCollectives, AddsTheDelayToEveryCollective) {
  const Constant model;
  const DelayedCollectives delayed(model, 0.5);
  EXPECT_EQ(delayed.time_s(kGather, 0b1, 8), 42.5);
  EXPECT_EQ(delayed.time_s(kGather, 0, 8), 0);
  EXPECT_EQ(DelayedCollectives(model, 0).time_s(kGather, 0b1, 8), 42);
  EXPECT_EQ(DelayedCollectives(model, -2).time_s(kGather, 0b1, 8), 40);
  EXPECT_EQ(DelayedCollectives(model, -50).time_s(kGather, 0b1, 8), 10.5);
  EXPECT_THROW(DelayedCollectives(model, 1.0 / 0.0), UserError);
}

TEST(BucketedCollectives, SmallOnesOfTheKindsTakeTheirShareOfABucket) {
  const Constant model;
  const std::set<Collective> sums{Collective::kAllReduce,
                                  Collective::kReduceScatter};
  const BucketedCollectives bucketed(model, sums, 64);
  EXPECT_EQ(bucketed.time_s(Collective::kAllReduce, 0b1, 16), 42 * 16.0 / 64);
  EXPECT_EQ(bucketed.time_s(Collective::kReduceScatter, 0b1, 63),
            42 * 63.0 / 64);
  EXPECT_EQ(bucketed.time_s(Collective::kAllReduce, 0b1, 64), 42);
  EXPECT_EQ(bucketed.time_s(Collective::kAllReduce, 0b1, 640), 42);
  EXPECT_EQ(bucketed.time_s(kGather, 0b1, 16), 42);
  EXPECT_EQ(BucketedCollectives(model, sums, 0)
                .time_s(Collective::kAllReduce, 0b1, 16),
            42);
  EXPECT_THROW(BucketedCollectives(model, sums, -1), UserError);
}

}  // namespace
}  // namespace tensoropt
