#include "comm/cluster.h"

#include <gtest/gtest.h>

#include "common/check.h"

namespace tensoropt {
namespace {

Cluster two_hosts() {
  return {"two hosts",
          Device{},
          {{"host", 2, 12e9, 5e-6}, {"gpu", 6, 250e9, 2e-6}}};
}

TEST(Cluster, DevicesPerUnitCountsWhatIsInside) {
  EXPECT_EQ(two_hosts().num_devices(), 12);
  EXPECT_EQ(two_hosts().devices_per_unit(0), 6);
  EXPECT_EQ(two_hosts().devices_per_unit(1), 1);
}

TEST(Device, DtypesThatAreNotListedRunAsFloat32) {
  Device device;
  device.peak_flops_per_s = {{DType::kFloat32, 10e12},
                             {DType::kBFloat16, 100e12}};
  device.matmul_efficiency = 0.5;
  EXPECT_DOUBLE_EQ(device.matmul_flops_per_s(DType::kBFloat16), 50e12);
  EXPECT_DOUBLE_EQ(device.matmul_flops_per_s(DType::kFloat16), 5e12);
  EXPECT_DOUBLE_EQ(device.attention_flops_per_s(DType::kBFloat16), 50e12);
  device.attention_efficiency = 0.2;
  EXPECT_DOUBLE_EQ(device.attention_flops_per_s(DType::kBFloat16), 20e12);
  EXPECT_DOUBLE_EQ(device.matmul_flops_per_s(DType::kBFloat16), 50e12);
  device.peak_flops_per_s.erase(DType::kFloat32);
  EXPECT_THROW(device.matmul_flops_per_s(DType::kFloat16), UserError);
}

TEST(Cluster, ValidateNamesTheWrongField) {
  EXPECT_NO_THROW(validate(two_hosts()));
  const auto expect_message = [](const Cluster& cluster, const char* part) {
    try {
      validate(cluster);
      FAIL() << "nothing thrown for " << part;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what();
    }
  };
  Cluster cluster = two_hosts();
  cluster.levels[1].bandwidth_bytes_per_s = 0;
  expect_message(cluster, "bandwidth_bytes_per_s of 'gpu' is 0");
  cluster = two_hosts();
  cluster.levels[0].collectives[Collective::kAllGather] = {1e9, -1};
  expect_message(cluster, "latency_s of 'host.all_gather' is -1");
  cluster = two_hosts();
  cluster.levels[0].count = 0;
  expect_message(cluster, "count of level 'host' is 0");
  cluster = two_hosts();
  cluster.device.memory_efficiency = 1.5;
  expect_message(cluster, "memory_efficiency of 'device' is 1.5");
  cluster = two_hosts();
  cluster.levels.clear();
  expect_message(cluster, "no levels");
}

}  // namespace
}  // namespace tensoropt
