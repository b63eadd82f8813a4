#include "comm/collective.h"

#include <array>

#include "common/check.h"

namespace tensoropt {

namespace {

constexpr std::array<std::string_view, kNumCollectives> kNames{
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"};

}  // namespace

Collective parse_collective(std::string_view name) {
  for (int i = 0; i < kNumCollectives; ++i) {
    if (kNames[i] == name) return static_cast<Collective>(i);
  }
  TO_CHECK(false, "collective '{}' is not one of {}", name,
           fmt::join(kNames, ", "));
}

std::string_view to_string(Collective collective) {
  return kNames[static_cast<int>(collective)];
}

}  // namespace tensoropt
