#include "reshard/shared_resharder.h"

#include <gtest/gtest.h>

#include "common/check.h"
#include "reshard/moves.h"
#include "reshard/simulation.h"

namespace tensoropt {
namespace {

using testing::all_layouts;

constexpr int kItemSize = 4;
constexpr double kBucketBytes = 1 << 16;
const std::set<Collective> kSums{Collective::kAllReduce,
                                 Collective::kReduceScatter};

// Mostly the time of a start.
class StartsModel : public CollectiveModel {
 public:
  double time_s(Collective collective, AxisSet axes,
                double bytes) const override {
    return axes == 0 ? 0
                     : 1e-4 * (1 + static_cast<int>(collective)) + 1e-9 * bytes;
  }
};

class SharedResharderTest : public ::testing::Test {
 protected:
  const Mesh mesh_{{{2, 0}, {4, 1}}};
  const Shape shape_{16, 8};
  const StartsModel model_;
  const Device device_;
  const TensorResharder alone_{mesh_, model_, device_, shape_, kItemSize};
};

TEST_F(SharedResharderTest, OneSumTakesItsShareAllElseWhatItTakesAlone) {
  const BucketedCollectives together(model_, kSums, kBucketBytes);
  const MoveCosts in_bucket(mesh_, together, device_, shape_, kItemSize);
  const SharedResharder shared(alone_, &in_bucket);
  int sharing = 0;
  for (const Layout& from : all_layouts(mesh_, shape_)) {
    for (const Layout& to : all_layouts(mesh_, shape_)) {
      const auto step = step_between(from, to);
      const bool sums = step && (step->kind == StepKind::kAllReduce ||
                                 step->kind == StepKind::kReduceScatter);
      double expected_s = alone_.time_s(from, to);
      if (sums) {
        ++sharing;
        const auto collective = step->kind == StepKind::kAllReduce
                                    ? Collective::kAllReduce
                                    : Collective::kReduceScatter;
        const double bytes =
            kItemSize * num_elements(local_shape(shape_, from, mesh_));
        const double share_s =
            model_.time_s(collective, step->axes, kBucketBytes) * bytes /
                kBucketBytes +
            (step->dim > 0 ? device_.memory_time_s(2 * bytes) : 0);
        ASSERT_LT(share_s, expected_s);
        expected_s = share_s;
        EXPECT_EQ(shared.steps(from, to), Steps{*step});
      } else {
        EXPECT_EQ(shared.steps(from, to), alone_.path(from, to).steps);
      }
      EXPECT_NEAR(shared.time_s(from, to), expected_s, 1e-10)
          << from.to_string() << " to " << to.to_string();
    }
  }
  EXPECT_GT(sharing, 0);
}

TEST_F(SharedResharderTest, OneGatherTakesItsShareWhereGathersAreTogether) {
  const BucketedCollectives together(model_, {Collective::kAllGather},
                                     kBucketBytes);
  const MoveCosts in_bucket(mesh_, together, device_, shape_, kItemSize);
  const SharedResharder shared(alone_, &in_bucket);
  const Layout whole = Layout::parse("R,R");
  const Layout rows = Layout::parse("S0,S0");
  const double bytes = kItemSize * num_elements(shape_);
  const double share_s =
      model_.time_s(Collective::kAllGather, 0b11, kBucketBytes) * bytes /
      kBucketBytes;
  EXPECT_NEAR(shared.time_s(rows, whole), share_s, 1e-10);
  EXPECT_EQ(shared.steps(rows, whole).size(), 1U);
  // Two dims take two gathers, and a sum has no bucket here.
  for (const char* from : {"S0,S1", "P,P"}) {
    const Layout layout = Layout::parse(from);
    EXPECT_EQ(shared.time_s(layout, whole), alone_.time_s(layout, whole));
  }
}

// What two sums do is not what one bucket does.
TEST_F(SharedResharderTest, AProgramOfTwoSumsHasNoBucket) {
  const BucketedCollectives together(model_, kSums, kBucketBytes);
  const MoveCosts in_bucket(mesh_, together, device_, shape_, kItemSize);
  const SharedResharder shared(alone_, &in_bucket);
  const Layout pending = Layout::parse("P,P");
  const Layout stored = Layout::parse("R,S0");
  EXPECT_EQ(alone_.path(pending, stored).steps.size(), 2U);
  EXPECT_EQ(shared.time_s(pending, stored), alone_.time_s(pending, stored));
}

TEST_F(SharedResharderTest, WithoutBucketsItIsThePathAlone) {
  const SharedResharder shared(alone_);
  for (const Layout& from : all_layouts(mesh_, shape_)) {
    for (const Layout& to : all_layouts(mesh_, shape_)) {
      EXPECT_EQ(shared.time_s(from, to), alone_.time_s(from, to));
      EXPECT_EQ(shared.steps(from, to), alone_.path(from, to).steps);
    }
  }
}

TEST_F(SharedResharderTest, LayoutsThatDoNotDivideAreRefused) {
  const SharedResharder shared(alone_);
  const Layout odd = Layout::parse("S2,R");
  EXPECT_THROW(shared.time_s(odd, Layout::parse("R,R")), UserError);
}

}  // namespace
}  // namespace tensoropt
