#include "common/cpu_count.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <string>

namespace tensoropt {
namespace {

namespace fs = std::filesystem;

// A made-up file system, removed in the end.
class CpuCount : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(::testing::TempDir()) / "cpu_count" / test->name();
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
  }

  static int all() {
    cpu_set_t cpus;
    sched_getaffinity(0, sizeof(cpus), &cpus);
    return CPU_COUNT(&cpus);
  }

  fs::path root_;
};

TEST_F(CpuCount, WithoutQuotasIsThatOfTheAffinityMask) {
  EXPECT_EQ(available_cpus(root_), all());
  write("proc/self/cgroup", "0::/");
  write("sys/fs/cgroup/cpu.max", "max 100000");
  EXPECT_EQ(available_cpus(root_), all());
}

TEST_F(CpuCount, FollowsTheQuotaOfAContainer) {
  write("proc/self/cgroup", "0::/");
  write("sys/fs/cgroup/cpu.max", "50000 100000");
  EXPECT_EQ(available_cpus(root_), 1);
}

TEST_F(CpuCount, TakesTheLeastQuotaOfAllGroupsAround) {
  if (all() < 2) GTEST_SKIP() << "one processor tells no quota from another";
  write("proc/self/cgroup", "0::/jobs/mine");
  write("sys/fs/cgroup/jobs/cpu.max", "150000 100000");
  write("sys/fs/cgroup/jobs/mine/cpu.max", "max 100000");
  EXPECT_EQ(available_cpus(root_), 2);  // 1.5, rounded up
  write("sys/fs/cgroup/jobs/mine/cpu.max", "20000 100000");
  EXPECT_EQ(available_cpus(root_), 1);
}

TEST_F(CpuCount, ReadsTheFirstVersionOfControlGroups) {
  write("proc/self/cgroup", "4:memory:/a\n3:cpu,cpuacct:/docker/b");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(available_cpus(root_), all());
  write("sys/fs/cgroup/cpu/docker/b/cpu.cfs_quota_us", "100000");
  write("sys/fs/cgroup/cpu/docker/b/cpu.cfs_period_us", "100000");
  EXPECT_EQ(available_cpus(root_), 1);
}

}  // namespace
}  // namespace tensoropt
