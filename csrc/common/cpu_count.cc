#include "common/cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

namespace tensoropt {

namespace {

namespace fs = std::filesystem;

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

int affinity() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) return CPU_COUNT(&cpus);
  return static_cast<int>(std::thread::hardware_concurrency());
}

std::optional<double> number_in(const fs::path& file) {
  std::ifstream in(file);
  double value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// "QUOTA PERIOD" or "max PERIOD", in microseconds.
double quota_of_v2(const fs::path& folder) {
  std::ifstream in(folder / "cpu.max");
  double quota = 0;
  double period = 0;
  return in >> quota >> period && period > 0 ? quota / period : kNoQuota;
}

double quota_of_v1(const fs::path& folder) {
  const auto quota = number_in(folder / "cpu.cfs_quota_us");
  const auto period = number_in(folder / "cpu.cfs_period_us");
  const bool limited = quota && period && *quota > 0 && *period > 0;
  return limited ? *quota / *period : kNoQuota;
}

// Of a group and of all that it is in, up to where groups are mounted. Inside a
// container the own group may be seen as the mount itself.
template <typename QuotaOf>
double least_quota(const fs::path& mount, const std::string& group,
                   QuotaOf&& quota_of) {
  double least = quota_of(mount);
  fs::path folder = mount;
  for (const fs::path& part : fs::path(group).relative_path()) {
    folder /= part;
    least = std::min(least, quota_of(folder));
  }
  return least;
}

bool has_cpu(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

// Lines are "NUMBER:CONTROLLERS:GROUP"; version 2 has no controllers.
double quota(const fs::path& root) {
  std::ifstream groups(root / "proc/self/cgroup");
  const fs::path mounts = root / "sys/fs/cgroup";
  double least = kNoQuota;
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (names.empty()) {
      least = std::min(least, least_quota(mounts, group, quota_of_v2));
    } else if (has_cpu(names)) {
      least = std::min(least, least_quota(mounts / "cpu", group, quota_of_v1));
    }
  }
  return least;
}

}  // namespace

int available_cpus(const fs::path& root) {
  const double cpus = std::min<double>(affinity(), std::ceil(quota(root)));
  return std::max(1, static_cast<int>(cpus));
}

}  // namespace tensoropt
