#include "common/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "common/check.h"

namespace tensoropt {
namespace {

TEST(ParallelFor, RunsEveryItemOnce) {
  for (const int threads : {1, 2, 5, 64}) {
    for (const int items : {0, 1, 2, 100}) {
      std::vector<std::atomic<int>> runs(items);
      parallel_for(items, threads, [&](int item) { ++runs[item]; });
      for (int item = 0; item < items; ++item) {
        EXPECT_EQ(runs[item], 1)
            << item << " of " << items << " on " << threads;
      }
    }
  }
}

TEST(ParallelFor, RethrowsAndStartsNoFurtherItems) {
  std::atomic<int> runs = 0;
  const auto body = [&](int item) {
    ++runs;
    if (item == 3) throw std::runtime_error("item 3");
  };
  EXPECT_THROW(parallel_for(100, 4, body), std::runtime_error);
  runs = 0;
  EXPECT_THROW(parallel_for(100, 1, body), std::runtime_error);
  EXPECT_EQ(runs, 4);
}

TEST(ParallelFor, MayBeNested) {
  std::atomic<int> runs = 0;
  parallel_for(4, 2, [&](int) { parallel_for(4, 2, [&](int) { ++runs; }); });
  EXPECT_EQ(runs, 16);
}

TEST(ResolveNumThreads, ZeroMeansAllAndNegativeIsRefused) {
  EXPECT_GE(resolve_num_threads(0), 1);
  EXPECT_EQ(resolve_num_threads(3), 3);
  EXPECT_THROW(resolve_num_threads(-1), UserError);
}

}  // namespace
}  // namespace tensoropt
