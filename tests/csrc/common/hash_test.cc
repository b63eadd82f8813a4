#include "common/hash.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

namespace tensoropt {
namespace {

TEST(Hash, EqualRangesHashEqual) {
  EXPECT_EQ(hash_range(std::vector<int>{1, 2, 3}),
            hash_range(std::vector<int>{1, 2, 3}));
}

TEST(Hash, OrderLengthAndSeedCount) {
  const std::set<std::size_t> hashes{
      hash_range(std::vector<int>{}),     hash_range(std::vector<int>{0}),
      hash_range(std::vector<int>{0, 0}), hash_range(std::vector<int>{1, 2}),
      hash_range(std::vector<int>{2, 1}), hash_range(std::vector<int>{1, 2}, 9),
  };
  EXPECT_EQ(hashes.size(), 6);
}

TEST(Hash, PairsOfSmallIntegersDiffer) {
  std::set<std::size_t> hashes;
  for (int a = 0; a < 100; ++a) {
    for (int b = 0; b < 100; ++b) hashes.insert(hash_range(std::array{a, b}));
  }
  EXPECT_EQ(hashes.size(), 100 * 100);
}

}  // namespace
}  // namespace tensoropt
