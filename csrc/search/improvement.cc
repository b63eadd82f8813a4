#include "search/improvement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "common/check.h"
#include "search/bounds/search_zones.h"
#include "search/bounds/weighted_probe.h"
#include "search/bounds/weights.h"
#include "search/memory_limits.h"
#include "search/quick_probe.h"

namespace tensoropt {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// More than what any strategy costs; nothing times it is nothing.
constexpr double kMost = std::numeric_limits<double>::max();
// So many weightings suit what is known. Then so many are asked at a time, as
// long as at most this part of the zones stays open.
constexpr std::size_t kFirstWeightings = 6;
constexpr std::size_t kMoreWeightings = 4;
constexpr double kStillWorthAsking = 0.75;

enum class Verdict { kNone, kSome, kUnknown };

// A strategy at least as good as one of the others.
bool is_matched(Point point, const std::vector<Point>& others) {
  return std::ranges::any_of(others, [&](Point other) {
    return other.memory <= point.memory && other.time <= point.time;
  });
}

// Looks at weighted sums of a problem beside what is known.
class QuickLook {
 public:
  QuickLook(const SearchOptions& options)
      : options_(options),
        limits_(memory_limits(options)),
        known_(pareto(options.others)) {}

  Verdict verdict(const Problem& problem) const {
    if (known_.empty()) return Verdict::kUnknown;
    const auto quick =
        QuickProbe::of(problem, options_.algorithm, options_.num_threads);
    if (quick == nullptr) return Verdict::kUnknown;
    return verdict(quick->probe(), quick->rounding());
  }

 private:
  Verdict verdict(WeightedProbe& probe, double rounding) const {
    probe.solve_between(options_.epsilon, limits_, 2);
    if (probe.strategies().empty()) return Verdict::kNone;
    std::vector<Weights> weightings = hull_weights(known_, kFirstWeightings);
    std::erase_if(weightings, [](const Weights& w) { return !w.is_usable(); });
    std::vector<Point> open = zones();
    while (true) {
      probe.solve(weightings);
      if (finds_some(probe)) return Verdict::kSome;
      const std::size_t before = open.size();
      std::erase_if(open, [&](Point zone) {
        return is_ruled_out(zone, probe, rounding);
      });
      if (open.empty()) return Verdict::kNone;
      if (static_cast<double>(open.size()) >
          kStillWorthAsking * static_cast<double>(before)) {
        return Verdict::kUnknown;
      }
      weightings = probe.weightings_for(open, kMoreWeightings);
      if (weightings.empty()) return Verdict::kUnknown;
    }
  }

  // All in which a strategy may be that is beside the known ones.
  std::vector<Point> zones() const {
    const double factor = 1 + options_.epsilon;
    const Point first = known_.front();
    std::vector<Point> zones{{first.memory / factor, kMost}};
    for (const double limit : limits_.picks) {
      if (limit < first.memory) {
        zones[0].memory = std::max(zones[0].memory, above(limit));
      }
    }
    for (const Point zone : zones_between(known_, options_.epsilon, limits_)) {
      zones.push_back(zone);
    }
    zones.push_back({kMost, known_.back().time / factor});
    for (Point& zone : zones) {
      zone.memory = std::min(zone.memory, above(limits_.most));
    }
    return zones;
  }

  static double above(double limit) {
    return limit < kMost ? std::nextafter(limit, kInfinity) : kMost;
  }

  // The search finds what is within epsilon of such a strategy, and beside the
  // known ones as well.
  bool finds_some(const WeightedProbe& probe) const {
    const double factor = 1 + options_.epsilon;
    return std::ranges::any_of(
        probe.strategies(), [&](const KnownStrategy& strategy) {
          const Point cost = strategy.cost;
          return cost.memory <= limits_.most &&
                 !is_matched({cost.memory * factor, cost.time * factor},
                             known_);
        });
  }

  static bool is_ruled_out(Point zone, const WeightedProbe& probe,
                           double rounding) {
    const std::vector<Weights>& weights = probe.weights();
    for (std::size_t w = 0; w < weights.size(); ++w) {
      const double corner = weights[w].of(zone);
      if (corner >= Weights::kMost) continue;
      if (corner * (1 + rounding) <= probe.optima()[w]) return true;
    }
    return false;
  }

  const SearchOptions& options_;
  const MemoryLimits limits_;
  const std::vector<Point> known_;
};

}  // namespace

bool may_improve(const Problem& problem, const SearchOptions& options) {
  TO_CHECK(!options.only_picks, "only_picks says nothing of all strategies");
  const Verdict verdict = QuickLook(options).verdict(problem);
  if (verdict != Verdict::kUnknown) return verdict == Verdict::kSome;
  const SearchResult found = search(problem, options);
  return std::ranges::any_of(found.points(), [&](Point point) {
    return !is_matched(point, options.others);
  });
}

}  // namespace tensoropt
