#include "baselines/axis_roles.h"

#include <gtest/gtest.h>

#include "space/small_space.h"

namespace tensoropt::testing {
namespace {

using Labels = std::vector<std::string>;

AxisRoles both(RoleKind kind, int name = NamedDims::kUnnamed) {
  return {{kind, name}, {kind, name}};
}

class AxisRolesTest : public ::testing::Test {
 protected:
  Labels op(NodeId node, const AxisRoles& roles) const {
    return small_.labels(node, masks_.allowed(roles));
  }
  Labels stored(ValueId value, const AxisRoles& roles) const {
    return op(small_.producer(value), roles);
  }

  const SmallSpace small_;
  const RoleMasks masks_{*small_.space};
};

TEST_F(AxisRolesTest, DataSplitsTheBatchAndReplicatesParameters) {
  const AxisRoles roles = both(RoleKind::kData);
  EXPECT_EQ(op(small_.fc1, roles), Labels{"b0,b0"});
  EXPECT_EQ(op(small_.norm, roles), Labels{"b0,b0"});
  EXPECT_EQ(stored(small_.w1, roles), Labels{"R,R"});
  EXPECT_EQ(stored(small_.scale, roles), Labels{"R,R"});
}

TEST_F(AxisRolesTest, ShardStoresParametersSharded) {
  const AxisRoles roles = both(RoleKind::kShard);
  EXPECT_EQ(op(small_.fc1, roles), Labels{"b0,b0"});
  EXPECT_EQ(stored(small_.scale, roles), Labels{"S0,S0"});
  for (const std::string& label : stored(small_.w1, roles)) {
    EXPECT_EQ(label.find('R'), std::string::npos) << label;
  }
}

TEST_F(AxisRolesTest, TensorSplitsWhatWeightsHave) {
  const AxisRoles roles = both(RoleKind::kTensor);
  EXPECT_EQ(op(small_.fc1, roles), (Labels{"n,n", "n,k", "k,k"}));
  // The norm has no weight, and needs whole the only dim that weights have.
  const Labels norm = op(small_.norm, roles);
  EXPECT_EQ(norm, Labels{"-,-"});
}

TEST_F(AxisRolesTest, RolesOfAlikeAxesAreTakenInAnyOrder) {
  const AxisRoles outer{{RoleKind::kData}, {RoleKind::kTensor}};
  const AxisRoles inner{{RoleKind::kTensor}, {RoleKind::kData}};
  EXPECT_EQ(op(small_.fc1, outer), (Labels{"b0,n", "b0,k"}));
  EXPECT_EQ(op(small_.fc1, inner), op(small_.fc1, outer));
}

TEST_F(AxisRolesTest, SplitFollowsOneNameEverywhere) {
  const int name = masks_.dims().of(small_.w1, 0).name;
  const AxisRoles roles = both(RoleKind::kSplit, name);
  EXPECT_EQ(op(small_.fc1, roles), Labels{"n,n"});
  EXPECT_EQ(op(small_.fc2, roles), Labels{"k,k"});
  EXPECT_EQ(op(small_.norm, roles), Labels{"-,-"});
  EXPECT_EQ(stored(small_.w1, roles), Labels{"S0,S0"});
  EXPECT_EQ(stored(small_.w2, roles), Labels{"S1,S1"});
}

TEST_F(AxisRolesTest, UnnamedSplitsNothing) {
  const AxisRoles roles = both(RoleKind::kSplit);
  EXPECT_EQ(op(small_.fc1, roles), Labels{"-,-"});
  EXPECT_EQ(stored(small_.w1, roles), Labels{"R,R"});
}

TEST_F(AxisRolesTest, EverythingLeavesNoAxisUnused) {
  const AxisRoles roles = both(RoleKind::kEverything);
  EXPECT_GT(op(small_.fc1, roles).size(), 3U);
  for (const NodeId node : {small_.fc1, small_.norm, small_.sum}) {
    for (const std::string& label : op(node, roles)) {
      EXPECT_EQ(label.find_first_of("-+"), std::string::npos) << label;
    }
  }
}

TEST(AxisRoles, ArePlayedOnAsManyAxesAsSizesAllow) {
  const SmallSpace small(/*batch=*/2);
  const auto allowed = RoleMasks(*small.space).allowed(both(RoleKind::kData));
  EXPECT_EQ(small.labels(small.fc1, allowed), Labels{"b0,-"});
}

TEST(AxisRoles, OfTheFullSpaceHaveAnOrder) {
  const SmallSpace small(8, ConfigSpace::kFull);
  const auto allowed =
      RoleMasks(*small.space).allowed({{RoleKind::kTensor}, {RoleKind::kData}});
  EXPECT_EQ(small.labels(small.fc1, allowed), (Labels{"n,b0", "k,b0"}));
}

}  // namespace
}  // namespace tensoropt::testing
