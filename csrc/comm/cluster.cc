#include "comm/cluster.h"

#include <string_view>

#include "comm/collective.h"
#include "common/check.h"

namespace tensoropt {

namespace {

void check_positive(std::string_view what, std::string_view name,
                    double value) {
  TO_CHECK(value > 0, "{} of '{}' is {}, must be positive", what, name, value);
}

void check_fraction(std::string_view what, std::string_view name,
                    double value) {
  TO_CHECK(value > 0 && value <= 1, "{} of '{}' is {}, must be in (0, 1]", what,
           name, value);
}

void validate(const Device& device) {
  check_positive("memory_bytes", device.name, device.memory_bytes);
  check_positive("memory_bandwidth_bytes_per_s", device.name,
                 device.memory_bandwidth_bytes_per_s);
  TO_CHECK(device.launch_overhead_s >= 0,
           "launch_overhead_s of '{}' is {}, must not be negative", device.name,
           device.launch_overhead_s);
  TO_CHECK(device.host_launch_s >= 0,
           "host_launch_s of '{}' is {}, must not be negative", device.name,
           device.host_launch_s);
  for (const auto& [dtype, flops] : device.peak_flops_per_s) {
    check_positive(str_format("peak_flops_per_s[{}]", to_string(dtype)),
                   device.name, flops);
  }
  check_fraction("matmul_efficiency", device.name, device.matmul_efficiency);
  check_fraction("memory_efficiency", device.name, device.memory_efficiency);
  if (device.attention_efficiency) {
    check_fraction("attention_efficiency", device.name,
                   *device.attention_efficiency);
  }
}

void validate(const LinkSpeed& speed, std::string_view where) {
  check_positive("bandwidth_bytes_per_s", where, speed.bandwidth_bytes_per_s);
  TO_CHECK(speed.latency_s >= 0,
           "latency_s of '{}' is {}, must not be negative", where,
           speed.latency_s);
}

void validate(const Level& level) {
  TO_CHECK(level.count >= 1, "count of level '{}' is {}, must be >= 1",
           level.name, level.count);
  validate({level.bandwidth_bytes_per_s, level.latency_s}, level.name);
  for (const auto& [collective, speed] : level.collectives) {
    validate(speed, str_format("{}.{}", level.name, to_string(collective)));
  }
}

}  // namespace

double Device::matmul_flops_per_s(DType dtype) const {
  auto found = peak_flops_per_s.find(dtype);
  if (found == peak_flops_per_s.end()) {
    found = peak_flops_per_s.find(DType::kFloat32);
  }
  TO_CHECK(found != peak_flops_per_s.end(),
           "device '{}' lists peak_flops_per_s neither for {} nor for float32",
           name, to_string(dtype));
  return found->second * matmul_efficiency;
}

double Device::attention_flops_per_s(DType dtype) const {
  const double matmul = matmul_flops_per_s(dtype);
  return attention_efficiency
             ? matmul / matmul_efficiency * *attention_efficiency
             : matmul;
}

LinkSpeed Level::speed_of(Collective collective) const {
  const auto found = collectives.find(collective);
  if (found != collectives.end()) return found->second;
  return {bandwidth_bytes_per_s, latency_s};
}

int Cluster::num_devices() const {
  int devices = 1;
  for (const Level& level : levels) devices *= level.count;
  return devices;
}

int Cluster::devices_per_unit(int level) const {
  int devices = 1;
  for (std::size_t i = level + 1; i < levels.size(); ++i) {
    devices *= levels[i].count;
  }
  return devices;
}

void validate(const Cluster& cluster) {
  validate(cluster.device);
  TO_CHECK(!cluster.levels.empty(), "cluster '{}' has no levels", cluster.name);
  for (const Level& level : cluster.levels) validate(level);
}

}  // namespace tensoropt
