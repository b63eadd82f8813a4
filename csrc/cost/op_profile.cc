#include "cost/op_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "common/check.h"

namespace tensoropt {

namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

// Distances below it count alike, so that no weight is infinite.
constexpr double kSameSize = 0.01;

double total(const PassTimes& times) {
  return times.forward_s + times.backward_s;
}

bool is_time(double seconds) { return std::isfinite(seconds) && seconds >= 0; }

}  // namespace

std::string_view to_string(EstimateSource source) {
  constexpr std::array<std::string_view, 3> kNames = {"measured", "neighbours",
                                                      "roofline"};
  return kNames[static_cast<std::size_t>(source)];
}

OpProfile::OpProfile(const std::vector<OpSample>& samples, const Device& device)
    : device_(device) {
  for (const OpSample& sample : samples) {
    TO_CHECK(is_time(sample.times.forward_s) &&
                 is_time(sample.times.backward_s) && sample.times.forward_s > 0,
             "operator '{}' was measured with {} s forward and {} s backward; "
             "times are positive: measure it again",
             sample.key, sample.times.forward_s, sample.times.backward_s);
    TO_CHECK(measured_.emplace(sample.key, sample.times).second,
             "operator '{}' is listed twice", sample.key);
    families_[sample.family].known.push_back(
        known_of(sample.work, sample.times));
  }
  for (auto& [name, family] : families_) family.error = leave_one_out(family);
}

OpProfile::Known OpProfile::known_of(const OpWork& work,
                                     const PassTimes& times) const {
  // Calls that move and compute nothing, as views, are alike; records of
  // measured ones do not say that they are attention.
  OpWork kernel = work;
  kernel.view = false;
  kernel.attention = false;
  const double flops = work.forward_flops + work.backward_flops;
  return {std::log1p(flops), std::log1p(work.bytes), roofline(kernel, device_),
          times};
}

PassTimes OpProfile::scaled(const Family& family, const Known& call,
                            std::size_t left_out) {
  std::vector<std::pair<double, std::size_t>> by_distance;
  for (std::size_t i = 0; i < family.known.size(); ++i) {
    if (i == left_out) continue;
    const Known& other = family.known[i];
    by_distance.emplace_back(std::hypot(call.log_flops - other.log_flops,
                                        call.log_bytes - other.log_bytes),
                             i);
  }
  std::sort(by_distance.begin(), by_distance.end());
  if (by_distance.size() > kNeighbours) by_distance.resize(kNeighbours);
  double weights = 0;
  double forward = 0;
  double backward = 0;
  for (const auto& [distance, i] : by_distance) {
    const double near = std::max(distance, kSameSize);
    const double weight = 1 / (near * near);
    const Known& other = family.known[i];
    weights += weight;
    forward += weight * std::log(other.times.forward_s / other.base.forward_s);
    // A pass that took no time is worth a thousandth of the roofline.
    const double least = 1e-3 * other.base.backward_s;
    if (other.base.backward_s > 0) {
      backward += weight * std::log(std::max(other.times.backward_s, least) /
                                    other.base.backward_s);
    }
  }
  return {call.base.forward_s * std::exp(forward / weights),
          call.base.backward_s * std::exp(backward / weights)};
}

double OpProfile::leave_one_out(const Family& family) {
  if (family.known.size() < 2) return -1;
  std::vector<double> errors;
  for (std::size_t i = 0; i < family.known.size(); ++i) {
    const Known& known = family.known[i];
    errors.push_back(
        std::abs(total(scaled(family, known, i)) / total(known.times) - 1));
  }
  const auto middle = errors.begin() + errors.size() / 2;
  std::nth_element(errors.begin(), middle, errors.end());
  return *middle;
}

OpEstimate OpProfile::estimate(const LocalCall& call) const {
  const auto measured = measured_.find(call.key);
  if (measured != measured_.end()) {
    return {measured->second, EstimateSource::kMeasured, 0};
  }
  const auto family = families_.find(call.family);
  if (family == families_.end()) {
    return {roofline(call.work, device_), EstimateSource::kRoofline, -1};
  }
  return {scaled(family->second, known_of(call.work, {}), kNone),
          EstimateSource::kNeighbours, family->second.error};
}

}  // namespace tensoropt
