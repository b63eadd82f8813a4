#include "describe/work_splits.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "space/small_space.h"

namespace tensoropt::testing {
namespace {

using Splits = std::vector<WorkSplit>;

// By the label of a config.
std::map<std::string, Splits> all_of(const SmallSpace& small, NodeId op) {
  const WorkSplits splits(*small.space);
  const SpaceNode& node = small.space->nodes()[small.space->node_of(op)];
  std::map<std::string, Splits> result;
  for (const SpaceConfig& config : node.configs->configs) {
    result[config.label] = splits.of(node, config);
  }
  return result;
}

TEST(WorkSplitsTest, LinearsAreSplitByBatchAndByWhatWeightsHave) {
  const auto found = all_of(SmallSpace(), SmallSpace().fc1);
  EXPECT_EQ(found.at("b0,b0"), (Splits{WorkSplit::kBatch, WorkSplit::kBatch}));
  EXPECT_EQ(found.at("n,k"),
            (Splits{WorkSplit::kFeatures, WorkSplit::kFeatures}));
  EXPECT_EQ(found.at("b0,n"),
            (Splits{WorkSplit::kBatch, WorkSplit::kFeatures}));
  EXPECT_EQ(found.at("-,-"), (Splits{WorkSplit::kNone, WorkSplit::kNone}));
}

TEST(WorkSplitsTest, OperatorsWithoutAWeightAreSplitByTheSameNames) {
  const SmallSpace small;
  for (const auto& [label, splits] : all_of(small, small.sum)) {
    for (const WorkSplit split : splits) {
      EXPECT_NE(split, WorkSplit::kPositions) << label;
    }
  }
  EXPECT_EQ(all_of(small, small.norm).at("b0,b0"),
            (Splits{WorkSplit::kBatch, WorkSplit::kBatch}));
}

TEST(WorkSplitsTest, NamesAreWords) {
  EXPECT_EQ(to_string(WorkSplit::kNone), "none");
  EXPECT_EQ(to_string(WorkSplit::kPositions), "positions");
}

}  // namespace
}  // namespace tensoropt::testing
