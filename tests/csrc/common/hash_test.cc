#include "common/hash.h"

#include <gtest/gtest.h>

#include <set>

namespace tensoropt {
namespace {

TEST(Hash, OrderAndSeedCount) {
  const auto hash = [](std::size_t seed, int a, int b) {
    return hash_combine(hash_combine(seed, a), b);
  };
  EXPECT_EQ(hash(0, 1, 2), hash(0, 1, 2));
  EXPECT_NE(hash(0, 1, 2), hash(0, 2, 1));
  EXPECT_NE(hash(0, 1, 2), hash(9, 1, 2));
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
