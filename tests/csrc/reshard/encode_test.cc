#include "reshard/encode.h"

#include <gtest/gtest.h>

#include "common/check.h"

namespace tensoropt {
namespace {

// Three axes; rank 5 of 12 is at (0, 1, 2).
const Mesh& mesh_223() {
  static const Mesh mesh({{2, 0}, {2, 0}, {3, 0}});
  return mesh;
}

TEST(Encode, SixIntegersPerStep) {
  const EncodedProgram code =
      encode({{StepKind::kAllToAll, 0b110, 1, 0}}, mesh_223(), 5);
  EXPECT_EQ(code.steps, (std::vector<std::int64_t>{3, 1, 0, 0, 6, 5}));
  EXPECT_EQ(code.groups, (std::vector<AxisSet>{0b110}));
}

TEST(Encode, GroupsAreNumberedByFirstUse) {
  const EncodedProgram code = encode({{StepKind::kAllGather, 0b100, 0, -1},
                                      {StepKind::kAllReduce, 0b001, -1, -1},
                                      {StepKind::kReduceScatter, 0b100, 1, -1}},
                                     mesh_223(), 5);
  EXPECT_EQ(code.groups, (std::vector<AxisSet>{0b100, 0b001}));
  EXPECT_EQ(code.steps, (std::vector<std::int64_t>{0, 0, -1, 0, 3, 2,   //
                                                   2, -1, -1, 1, 2, 0,  //
                                                   1, 1, -1, 0, 3, 2}));
}

TEST(Encode, LocalStepsHaveNoGroup) {
  const EncodedProgram code = encode(
      {{StepKind::kSlice, 0b010, 0, -1}, {StepKind::kMask, 0b001, -1, -1}},
      mesh_223(), 5);
  EXPECT_TRUE(code.groups.empty());
  EXPECT_EQ(code.steps, (std::vector<std::int64_t>{4, 0, -1, -1, 2, 1,  //
                                                   5, -1, -1, -1, 2, 0}));
}

TEST(Encode, RejectsRanksOutsideTheMesh) {
  EXPECT_THROW(encode({}, mesh_223(), 12), UserError);
  EXPECT_THROW(encode({}, mesh_223(), -1), UserError);
}

}  // namespace
}  // namespace tensoropt
