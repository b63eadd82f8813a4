#include "common/cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
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

// Empty if there is no such file. Without streams, whose numbers need a locale:
// where the library carries a C++ runtime of its own, that of the process may
// not have one for it.
std::string text_of(const fs::path& file) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(
      std::fopen(file.c_str(), "r"), std::fclose);
  std::string text;
  if (!in) return text;
  char buffer[4096];
  while (const std::size_t count =
             std::fread(buffer, 1, sizeof(buffer), in.get())) {
    text.append(buffer, count);
  }
  return text;
}

// Up to a separator, which leaves `rest` as well.
std::string_view take(std::string_view& rest, char separator) {
  const std::string_view taken = rest.substr(0, rest.find(separator));
  rest.remove_prefix(std::min(taken.size() + 1, rest.size()));
  return taken;
}

// 0 if there is none.
double number_in(std::string_view text) {
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return static_cast<double>(value);
}

double ratio(double quota, double period) {
  return quota > 0 && period > 0 ? quota / period : kNoQuota;
}

// "QUOTA PERIOD" or "max PERIOD", in microseconds.
double quota_of_v2(const fs::path& folder) {
  const std::string text = text_of(folder / "cpu.max");
  std::string_view rest = text;
  const double quota = number_in(take(rest, ' '));
  return ratio(quota, number_in(rest));
}

double quota_of_v1(const fs::path& folder) {
  return ratio(number_in(text_of(folder / "cpu.cfs_quota_us")),
               number_in(text_of(folder / "cpu.cfs_period_us")));
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

bool has_cpu(std::string_view controllers) {
  while (!controllers.empty()) {
    if (take(controllers, ',') == "cpu") return true;
  }
  return false;
}

// Lines are "NUMBER:CONTROLLERS:GROUP"; version 2 has no controllers.
double quota(const fs::path& root) {
  const std::string groups = text_of(root / "proc/self/cgroup");
  const fs::path mounts = root / "sys/fs/cgroup";
  double least = kNoQuota;
  for (std::string_view rest = groups; !rest.empty();) {
    std::string_view line = take(rest, '\n');
    if (std::count(line.begin(), line.end(), ':') < 2) continue;
    take(line, ':');
    const std::string_view names = take(line, ':');
    const std::string group(line);
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
