#include "sharding/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/check.h"

namespace tensoropt {
namespace {

Mesh mesh_2x3x2() { return Mesh({{2, 0}, {3, 1}, {2, 1}}); }

TEST(Mesh, RankIsTheLexicographicIndexOfItsCoordinates) {
  const Mesh mesh = mesh_2x3x2();
  EXPECT_EQ(mesh.num_devices(), 12);
  int rank = 0;
  for (int a = 0; a < 2; ++a) {
    for (int b = 0; b < 3; ++b) {
      for (int c = 0; c < 2; ++c, ++rank) {
        EXPECT_EQ(mesh.coordinate(rank, 0), a);
        EXPECT_EQ(mesh.coordinate(rank, 1), b);
        EXPECT_EQ(mesh.coordinate(rank, 2), c);
      }
    }
  }
}

TEST(Mesh, IndexInASetTakesItsFirstAxisAsMostSignificant) {
  const Mesh mesh = mesh_2x3x2();
  const int rank = 11 - 2;  // coordinates 1, 1, 1
  EXPECT_EQ(mesh.index_in(0b111, rank), rank);
  EXPECT_EQ(mesh.index_in(0b110, rank), 1 * 2 + 1);
  EXPECT_EQ(mesh.index_in(0b011, rank), 1 * 3 + 1);
  EXPECT_EQ(mesh.index_in(0, rank), 0);
  EXPECT_EQ(mesh.size_of(0b101), 4);
  EXPECT_EQ(mesh.size_of(0), 1);
}

TEST(Mesh, GroupsAreTheRanksThatDifferAlongTheSetOnly) {
  const Mesh mesh = mesh_2x3x2();
  for (AxisSet set = 0; set < 8; ++set) {
    for (int rank = 0; rank < mesh.num_devices(); ++rank) {
      std::vector<int> expected;
      for (int other = 0; other < mesh.num_devices(); ++other) {
        bool same = true;
        for (int axis = 0; axis < 3; ++axis) {
          const bool free = (set >> axis & 1) != 0;
          same = same && (free || mesh.coordinate(rank, axis) ==
                                      mesh.coordinate(other, axis));
        }
        if (same) expected.push_back(other);
      }
      EXPECT_EQ(mesh.group_of(set, rank), expected) << set << ' ' << rank;
    }
  }
}

TEST(Mesh, RanksOfAGroupAreInTheOrderOfTheirIndices) {
  const Mesh mesh = mesh_2x3x2();
  for (AxisSet set = 0; set < 8; ++set) {
    const std::vector<int> group = mesh.group_of(set, 7);
    for (std::size_t i = 0; i < group.size(); ++i) {
      EXPECT_EQ(mesh.index_in(set, group[i]), static_cast<int>(i));
    }
  }
}

TEST(Mesh, AlikeAxesHaveTheSameSizeAndLevel) {
  const Mesh mesh({{2, 0}, {2, 1}, {2, 1}, {3, 1}});
  EXPECT_TRUE(mesh.alike(1, 2));
  EXPECT_FALSE(mesh.alike(0, 1));
  EXPECT_FALSE(mesh.alike(2, 3));
}

TEST(Mesh, OfOneDeviceHasNoAxes) {
  const Mesh mesh({});
  EXPECT_EQ(mesh.num_axes(), 0);
  EXPECT_EQ(mesh.num_devices(), 1);
  EXPECT_EQ(mesh.group_of(0, 0), std::vector<int>{0});
}

TEST(Mesh, RefusesSizesLevelsAndNumbersOfAxes) {
  EXPECT_THROW(Mesh({{1, 0}}), UserError);
  EXPECT_THROW(Mesh({{2, 1}, {2, 0}}), UserError);
  EXPECT_NO_THROW(Mesh(std::vector<MeshAxis>(Mesh::kMaxAxes, {2, 0})));
  EXPECT_THROW(Mesh(std::vector<MeshAxis>(Mesh::kMaxAxes + 1, {2, 0})),
               UserError);
}

}  // namespace
}  // namespace tensoropt
