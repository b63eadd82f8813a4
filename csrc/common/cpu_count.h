// How many processors this process may use.
//
//   const int cpus = available_cpus();
//
// The least of what the affinity mask allows and of the quotas of the control
// groups that the process is in (containers), rounded up, at least 1. Quotas
// are read under `root`: /proc/self/cgroup says where they are, in version 2
// ("cpu.max") and version 1 ("cpu.cfs_quota_us") of control groups. What cannot
// be read sets no limit.
#pragma once

#include <filesystem>

namespace tensoropt {

int available_cpus(const std::filesystem::path& root = "/");

}  // namespace tensoropt
