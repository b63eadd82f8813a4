#include "common/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/check.h"

namespace tensoropt {
namespace {

TEST(Workers, RunEveryItemOnce) {
  for (const int threads : {1, 2, 5, 64}) {
    Workers workers(threads);
    for (const int items : {0, 1, 2, 100}) {
      std::vector<std::atomic<int>> runs(items);
      workers.run(items, [&](int item) { ++runs[item]; });
      for (int item = 0; item < items; ++item) {
        EXPECT_EQ(runs[item], 1)
            << item << " of " << items << " on " << threads;
      }
    }
  }
}

TEST(Workers, TakePartInManyLoopsWithTheSameThreads) {
  Workers workers(4);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::atomic<int> runs = 0;
  for (int loop = 0; loop < 2000; ++loop) {
    workers.run(8, [&](int) {
      ++runs;
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
  }
  EXPECT_EQ(runs, 8 * 2000);
  EXPECT_LE(seen.size(), 4u);
}

TEST(Workers, WorkAtTheSameTime) {
  Workers workers(3);
  std::atomic<int> arrived = 0;
  workers.run(3, [&](int) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 3);
}

TEST(Workers, RethrowAndStartNoFurtherItems) {
  std::atomic<int> runs = 0;
  const auto body = [&](int item) {
    ++runs;
    if (item == 3) throw std::runtime_error("item 3");
  };
  Workers many(4);
  EXPECT_THROW(many.run(100, body), std::runtime_error);
  std::atomic<int> after = 0;
  many.run(10, [&](int) { ++after; });
  EXPECT_EQ(after, 10);
  runs = 0;
  EXPECT_THROW(Workers(1).run(100, body), std::runtime_error);
  EXPECT_EQ(runs, 4);
}

TEST(Workers, MayBeNested) {
  Workers workers(2);
  std::atomic<int> runs = 0;
  workers.run(4, [&](int) { workers.run(4, [&](int) { ++runs; }); });
  EXPECT_EQ(runs, 16);
}

TEST(Workers, ServeTwoThreadsAtOnce) {
  Workers workers(3);
  std::atomic<int> runs = 0;
  const auto use = [&] {
    for (int i = 0; i < 500; ++i) workers.run(5, [&](int) { ++runs; });
  };
  std::jthread other(use);
  use();
  other.join();
  EXPECT_EQ(runs, 2 * 500 * 5);
}

TEST(Workers, ZeroMeansAllProcessorsAndNegativeIsRefused) {
  EXPECT_GE(Workers(0).num_threads(), 1);
  EXPECT_EQ(Workers(3).num_threads(), 3);
  EXPECT_THROW(Workers(-1), UserError);
}

}  // namespace
}  // namespace tensoropt
