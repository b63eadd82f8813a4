#include "common/hash.h"

#include <gtest/gtest.h>

#include <set>

namespace tensoropt {
namespace {

TEST(Hash, OrderAndSeedCount) {
  EXPECT_EQ(hash_combine(1, 2), hash_combine(1, 2));
  EXPECT_NE(hash_combine(1, 2), hash_combine(2, 1));
  EXPECT_NE(hash_combine(1, 2), hash_combine(9, 2));
}

TEST(Hash, PairsOfSmallIntegersDiffer) {
  std::set<std::size_t> hashes;
  for (int a = 0; a < 100; ++a) {
    for (int b = 0; b < 100; ++b) {
      hashes.insert(hash_combine(hash_combine(0, a), b));
    }
  }
  EXPECT_EQ(hashes.size(), 100 * 100);
}

}  // namespace
}  // namespace tensoropt
