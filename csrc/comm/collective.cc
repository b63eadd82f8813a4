#include "comm/collective.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/check.h"

namespace tensoropt {

namespace {

constexpr std::array<std::string_view, kNumCollectives> kNames{
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"};

}  // namespace

std::string_view to_string(Collective collective) {
  return kNames[static_cast<int>(collective)];
}

DelayedCollectives::DelayedCollectives(const CollectiveModel& model,
                                       double delay_s)
    : model_(model), delay_s_(delay_s) {
  TO_CHECK(std::isfinite(delay_s), "a collective cannot take {} s longer",
           delay_s);
}

double DelayedCollectives::time_s(Collective collective, AxisSet axes,
                                  double bytes) const {
  if (axes == 0) return 0;
  const double time_s = model_.time_s(collective, axes, bytes);
  return std::max(time_s + delay_s_, time_s / 4);
}

BucketedCollectives::BucketedCollectives(const CollectiveModel& model,
                                         std::set<Collective> kinds,
                                         double bucket_bytes)
    : model_(model), kinds_(std::move(kinds)), bucket_bytes_(bucket_bytes) {
  TO_CHECK(bucket_bytes >= 0, "a bucket of {} bytes", bucket_bytes);
}

double BucketedCollectives::time_s(Collective collective, AxisSet axes,
                                   double bytes) const {
  if (!kinds_.contains(collective) || bytes >= bucket_bytes_) {
    return model_.time_s(collective, axes, bytes);
  }
  const double together_s = model_.time_s(collective, axes, bucket_bytes_);
  return std::min(model_.time_s(collective, axes, bytes),
                  together_s * bytes / bucket_bytes_);
}

}  // namespace tensoropt
