#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "comm/collective.h"
#include "common/check.h"

namespace tensoropt {

namespace {

// Times that never fall, with the least sum of differences from the given ones:
// neighbours that fall share their median. So one time that is far too long
// changes itself only. (Isotonic regression by pooling adjacent violators.)
void make_monotone(std::vector<CollectiveSample>& samples) {
  struct Block {
    std::vector<double> times;  // sorted
    double median() const { return times[(times.size() - 1) / 2]; }
  };
  std::vector<Block> blocks;
  for (const CollectiveSample& sample : samples) {
    blocks.push_back({{sample.time_s}});
    while (blocks.size() > 1 &&
           blocks[blocks.size() - 2].median() > blocks.back().median()) {
      std::vector<double> joined;
      const Block last = std::move(blocks.back());
      blocks.pop_back();
      std::merge(last.times.begin(), last.times.end(),
                 blocks.back().times.begin(), blocks.back().times.end(),
                 std::back_inserter(joined));
      blocks.back().times = std::move(joined);
    }
  }
  auto sample = samples.begin();
  for (const Block& block : blocks) {
    for (std::size_t i = 0; i < block.times.size(); ++i) {
      (sample++)->time_s = block.median();
    }
  }
}

// Sorted by size, times never falling.
std::vector<CollectiveSample> make_curve(
    std::vector<CollectiveSample> samples) {
  TO_CHECK(!samples.empty(), "a collective is listed without samples");
  std::sort(samples.begin(), samples.end(),
            [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  for (std::size_t i = 0; i < samples.size(); ++i) {
    TO_CHECK(samples[i].bytes > 0 && samples[i].time_s > 0 &&
                 std::isfinite(samples[i].time_s),
             "sample ({} bytes, {} s) is not positive", samples[i].bytes,
             samples[i].time_s);
    if (i == 0) continue;
    TO_CHECK(samples[i].bytes > samples[i - 1].bytes,
             "two samples of {} bytes for one collective", samples[i].bytes);
  }
  make_monotone(samples);
  return samples;
}

// Seconds per further byte from `a` to `b`; if these are equally fast, the mean
// of `b` over all its bytes.
double slope(const CollectiveSample& a, const CollectiveSample& b) {
  if (b.time_s > a.time_s) return (b.time_s - a.time_s) / (b.bytes - a.bytes);
  return b.time_s / b.bytes;
}

double below(const std::vector<CollectiveSample>& curve, double bytes) {
  const CollectiveSample& first = curve.front();
  // Without a second sample all of the time may be latency.
  if (curve.size() == 1 || curve[1].time_s <= first.time_s) return first.time_s;
  // The line may not cross zero: the ray from the origin is its lower bound.
  const double per_byte =
      std::min(slope(first, curve[1]), first.time_s / first.bytes);
  return first.time_s - (first.bytes - bytes) * per_byte;
}

double above(const std::vector<CollectiveSample>& curve, double bytes) {
  const CollectiveSample& last = curve.back();
  const double per_byte = curve.size() == 1
                              ? last.time_s / last.bytes
                              : slope(curve[curve.size() - 2], last);
  return last.time_s + (bytes - last.bytes) * per_byte;
}

double interpolate(const std::vector<CollectiveSample>& curve, double bytes) {
  if (bytes <= curve.front().bytes) return below(curve, bytes);
  if (bytes >= curve.back().bytes) return above(curve, bytes);
  const auto next = std::upper_bound(
      curve.begin(), curve.end(), bytes,
      [](double value, const auto& sample) { return value < sample.bytes; });
  const CollectiveSample& b = *next;
  const CollectiveSample& a = *(next - 1);
  const double t = std::log(bytes / a.bytes) / std::log(b.bytes / a.bytes);
  return a.time_s * std::pow(b.time_s / a.time_s, t);
}

}  // namespace

MeasuredCollectives::MeasuredCollectives(const Mesh& mesh,
                                         const CollectiveTable& table,
                                         const CollectiveModel& fallback)
    : fallback_(fallback) {
  const AxisSet num_sets = AxisSet{1} << mesh.num_axes();
  curve_of_.assign(kNumCollectives, std::vector<int>(num_sets, -1));
  for (const auto& [key, samples] : table) {
    const auto& [collective, axes] = key;
    TO_CHECK(axes > 0 && axes < num_sets,
             "{} over axis set {:#b}: the mesh has {} axes",
             to_string(collective), axes, mesh.num_axes());
    curve_of_[static_cast<int>(collective)][axes] =
        static_cast<int>(curves_.size());
    curves_.push_back(make_curve(samples));
  }
  for (std::vector<int>& curves : curve_of_) {
    std::vector<int> shared(num_sets, -1);  // by canonical set
    for (AxisSet set = num_sets; set-- > 1;) {
      if (curves[set] >= 0) shared[mesh.canonical(set)] = curves[set];
    }
    for (AxisSet set = 1; set < num_sets; ++set) {
      if (curves[set] < 0) curves[set] = shared[mesh.canonical(set)];
    }
  }
}

double MeasuredCollectives::time_s(Collective collective, AxisSet axes,
                                   double bytes) const {
  if (axes == 0) return 0;
  const int curve = curve_of(collective, axes);
  if (curve < 0) return fallback_.time_s(collective, axes, bytes);
  return interpolate(curves_[curve], bytes);
}

}  // namespace tensoropt
