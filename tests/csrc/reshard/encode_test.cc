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
      encode({{StepKind::kAllToAll, 0b110, 1, 0}}, {.shape = {24, 24}},
             Layout::parse("R,S1,S1"), mesh_223(), 5);
  EXPECT_EQ(code.steps, (std::vector<std::int64_t>{3, 1, 0, 0, 6, 5}));
  EXPECT_EQ(code.groups, (std::vector<AxisSet>{0b110}));
}

TEST(Encode, GroupsAreNumberedByFirstUse) {
  const EncodedProgram code =
      encode({{StepKind::kAllGather, 0b100, 0, -1},
              {StepKind::kAllReduce, 0b001, -1, -1},
              {StepKind::kReduceScatter, 0b100, 1, -1}},
             {.shape = {24, 24}}, Layout::parse("P,R,S0"), mesh_223(), 5);
  EXPECT_EQ(code.groups, (std::vector<AxisSet>{0b100, 0b001}));
  EXPECT_EQ(code.steps, (std::vector<std::int64_t>{0, 0, -1, 0, 3, 2,   //
                                                   2, -1, -1, 1, 2, 0,  //
                                                   1, 1, -1, 0, 3, 2}));
}

// 7 rows are 4 and 3 by axis 0; the last axis cuts 4 into 2, 2 and 0, and 3
// into 1, 1 and 1. Rank 5 is in the first half, rank 11 in the second.
TEST(Encode, PartsThatDifferAreListed) {
  const Steps steps{{StepKind::kAllGather, 0b100, 0, -1},
                    {StepKind::kAllReduce, 0b010, -1, -1}};
  const Layout from = Layout::parse("S0,P,S0");
  EXPECT_EQ(encode(steps, {.shape = {7, 5}}, from, mesh_223(), 5).steps,
            (std::vector<std::int64_t>{0 + kUneven, 0, -1, 0, 3, 2,   //
                                       4, 10, 2, 2, 0,                //
                                       2 + kUneven, -1, -1, 1, 2, 1,  //
                                       1, 20}));
  const EncodedProgram other =
      encode(steps, {.shape = {7, 5}}, from, mesh_223(), 11);
  EXPECT_EQ(std::vector<std::int64_t>(other.steps.begin() + kIntsPerStep,
                                      other.steps.begin() + kIntsPerStep + 5),
            (std::vector<std::int64_t>{4, 10, 1, 1, 1}));
  EXPECT_EQ(other.num_steps, 2);
  EXPECT_EQ(other.first_kind(), StepKind::kAllGather);
  EXPECT_TRUE(other.is_uneven());
}

// The same 7 rows, of 4 entries each.
TEST(Encode, PartsAreOfWholeUnits) {
  const Steps steps{{StepKind::kAllGather, 0b100, 0, -1}};
  const Layout from = Layout::parse("S0,R,S0");
  const TensorMeta rows{.shape = {28, 5}, .units = {4, 1}};
  EXPECT_EQ(encode(steps, rows, from, mesh_223(), 5).steps,
            (std::vector<std::int64_t>{0 + kUneven, 0, -1, 0, 3, 2,  //
                                       4, 40, 8, 8, 0}));
  const TensorMeta even{.shape = {48, 5}, .units = {4, 1}};
  EXPECT_FALSE(encode(steps, even, from, mesh_223(), 5).is_uneven());
}

TEST(Encode, LocalStepsHaveNoGroup) {
  const EncodedProgram code = encode(
      {{StepKind::kSlice, 0b010, 0, -1}, {StepKind::kMask, 0b001, -1, -1}},
      {.shape = {24}}, Layout::parse("R,R,R"), mesh_223(), 5);
  EXPECT_TRUE(code.groups.empty());
  EXPECT_EQ(code.steps, (std::vector<std::int64_t>{4, 0, -1, -1, 2, 1,  //
                                                   5, -1, -1, -1, 2, 0}));
}

TEST(Encode, RejectsRanksOutsideTheMesh) {
  const Layout whole = Layout::replicated(3);
  EXPECT_THROW(encode({}, TensorMeta{}, whole, mesh_223(), 12), UserError);
  EXPECT_THROW(encode({}, TensorMeta{}, whole, mesh_223(), -1), UserError);
}

}  // namespace
}  // namespace tensoropt
