// What a cluster is made of, as far as costs depend on it.
//
//   Cluster cluster{"two hosts", device,
//                   {{"machine", 2, 12.5e9, 5e-6}, {"gpu", 8, 250e9, 2e-6}}};
//   cluster.num_devices();              // 16
//
// Levels go from outermost to innermost. A unit of a level is one of the
// `count` things that the level joins (a machine, a GPU); a unit of the
// innermost level is one device.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "sharding/collective_kind.h"
#include "sharding/mesh.h"

namespace tensoropt {

// One device. Efficiencies are the fractions of the peaks that large
// operations reach in practice.
struct Device {
  std::string name = "device";
  double memory_bytes = 16e9;
  double memory_bandwidth_bytes_per_s = 100e9;
  // Fixed time of one operation, however small.
  double launch_overhead_s = 5e-6;
  // What the host needs to call an operator that the device then runs beside
  // it; 0: it is the device itself.
  double host_launch_s = 0;
  std::map<DType, double> peak_flops_per_s = {{DType::kFloat32, 1e12}};
  double matmul_efficiency = 0.6;
  double memory_efficiency = 0.8;
  // The efficiency of fused attention; none: that of matrix products.
  std::optional<double> attention_efficiency = {};

  // What a large matrix product in `dtype` reaches. A dtype that is not listed
  // runs as float32. Throws UserError if neither is listed.
  double matmul_flops_per_s(DType dtype) const;
  // The same for fused attention.
  double attention_flops_per_s(DType dtype) const;
  // What a large copy reaches, counting bytes read plus bytes written.
  double copy_bytes_per_s() const {
    return memory_bandwidth_bytes_per_s * memory_efficiency;
  }
  // Time of a local operation that reads and writes `bytes` in total.
  double memory_time_s(double bytes) const {
    return launch_overhead_s + bytes / copy_bytes_per_s();
  }
};

// What messages reach over a link: bytes/s in each direction, and the time of
// one message, however small.
struct LinkSpeed {
  double bandwidth_bytes_per_s = 1e9;
  double latency_s = 1e-5;
};

// One kind of network. The bandwidth is that of ONE unit's link into the level:
// all devices of a machine share its network card.
struct Level {
  std::string name;
  int count = 1;
  double bandwidth_bytes_per_s = 1e9;
  double latency_s = 1e-5;
  // Speeds of collectives that differ from the two figures above.
  std::map<Collective, LinkSpeed> collectives = {};

  LinkSpeed speed_of(Collective collective) const;
};

struct Cluster {
  std::string name;
  Device device;
  std::vector<Level> levels;  // outermost first

  int num_devices() const;
  // Devices inside one unit of `level` (1 for the innermost level).
  int devices_per_unit(int level) const;
};

// Throws UserError, naming the field, if a number is not positive or a
// fraction is not in (0, 1].
void validate(const Cluster& cluster);

}  // namespace tensoropt
