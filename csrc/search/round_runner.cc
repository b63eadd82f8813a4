#include "search/round_runner.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "search/bounds/bounds.h"
#include "search/stopwatch.h"

namespace tensoropt {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// So many cells of tables are looked at in the first round, more if much is
// known already, and this many times more in the next one.
constexpr std::int64_t kFirstCells = 10000;
constexpr std::int64_t kFirstCellsIfGiven = 1000000;
constexpr std::int64_t kMoreCells = 4;
// So many times more may be left by the probe.
constexpr std::int64_t kProbeCells = 8;
// How far from an optimum strategies are looked for at first, and at least.
constexpr double kFirstSlack = 0.1;
constexpr double kLeastSlack = 1e-7;
// Rounds before the last one only look for strategies: they thin so many times
// more.
constexpr double kRoughness = 10;
// Weightings of the bounds, of each of two hulls.
constexpr std::size_t kMaxWeights = 32;
// More zones than can be looked at at a time are looked at in so many groups.
constexpr std::size_t kMaxGroups = 8;

}  // namespace

RoundRunner::RoundRunner(const MinPlusGraph& graph, const Schedule& schedule,
                         const RoundOptions& options,
                         const std::vector<Point>& given,
                         const WeightedProbe& probe,
                         ProductEvaluator& evaluator)
    : graph_(graph),
      schedule_(schedule),
      options_(options),
      probe_(probe),
      evaluator_(evaluator),
      known_(probe.strategies()),
      costs_(given),
      first_cells_(given.empty() ? kFirstCells : kFirstCellsIfGiven) {
  note_costs(known_);
}

void RoundRunner::run() {
  std::int64_t most_cells = first_cells_;
  while (!round(most_cells)) most_cells *= kMoreCells;
}

ZoneLimits RoundRunner::probe_limits() const {
  return probe_limits(region_of(open_zones()));
}

// Whether strategies may be in the zone, as far as the probe can say.
bool RoundRunner::is_open(Point zone) const {
  for (std::size_t w = 0; w < probe_.weights().size(); ++w) {
    const double least = probe_.optima()[w] * (1 - graph_.rounding());
    if (probe_.weights()[w].of(zone) < least) return false;
  }
  return true;
}

// Whether a cost is known that no strategy of the problem has.
bool RoundRunner::are_others_better() const {
  const std::vector<double> known = known_optima(probe_.weights());
  for (std::size_t w = 0; w < known.size(); ++w) {
    if (known[w] < probe_.optima()[w] * (1 - graph_.rounding())) return true;
  }
  return false;
}

std::vector<Point> RoundRunner::open_zones() const {
  std::vector<Point> zones =
      zones_between(costs_, options_.known_epsilon, options_.limits);
  std::erase_if(zones, [&](Point zone) { return !is_open(zone); });
  return zones;
}

RoundRunner::Region RoundRunner::region_of(
    const std::vector<Point>& zones) const {
  std::vector<Weights> weights = hull_weights(costs_, kMaxWeights);
  // The hull of all says little of this problem's strategies then, whose own
  // hull is above it.
  if (are_others_better()) {
    const auto more =
        weights_above(known_costs(known_), zones, weights, kMaxWeights);
    weights.insert(weights.end(), more.begin(), more.end());
  }
  return {join_zones(zones, kMaxZones), weights, known_optima(weights),
          kInfinity};
}

// Looks at about `most_cells` cells; returns whether these were all.
bool RoundRunner::round(std::int64_t most_cells) {
  const std::vector<Point> zones =
      join_zones(open_zones(), kMaxGroups * kMaxZones);
  if (zones.empty()) return true;
  ++num_rounds_;
  Region region = region_of(zones);
  const auto lower_slack = [&](auto&& estimate_alive, std::int64_t most) {
    while (region.slack > kLeastSlack && estimate_alive() > most) {
      region.slack = std::min(region.slack / 2, kFirstSlack);
    }
  };
  const std::int64_t most_after_probe = kProbeCells * most_cells;
  lower_slack([&] { return probe_.estimate_alive(probe_limits(region)); },
              most_after_probe);
  Bounds bounds(graph_, probe_, probe_limits(region), limits(region),
                options_.workers);
  lower_slack([&] { return bounds.estimate_alive(limits(region)); },
              most_cells);
  bounds.tighten(limits(region));
  num_alive_ = bounds.num_alive();
  if (std::isinf(region.slack)) {
    search_all(bounds, std::move(region), zones);
    return true;
  }
  const double rough =
      std::max(kRoughness * options_.thin_epsilon, region.slack);
  evaluate(bounds, {.epsilon = rough,
                    .memory_limit = options_.limits.most,
                    .most_points = options_.most_points});
  return false;
}

ZoneLimits RoundRunner::limits(const Region& region) const {
  return ZoneLimits(region.weights, region.optima, region.zones, region.slack,
                    graph_.rounding());
}

ZoneLimits RoundRunner::probe_limits(const Region& region) const {
  return ZoneLimits(probe_.weights(), probe_.optima(), region.zones,
                    region.slack, graph_.rounding());
}

// Zones that had to be joined are searched in groups that need not be.
void RoundRunner::search_all(Bounds& bounds, Region region,
                             const std::vector<Point>& zones) {
  error_ = 0;
  const std::size_t size = options_.limits.only_picks ? 0 : zones.size();
  for (std::size_t first = 0; first < size; first += kMaxZones) {
    const std::size_t last = std::min(first + kMaxZones, size);
    region.zones.assign(zones.begin() + first, zones.begin() + last);
    search_completely(bounds, region,
                      {.epsilon = options_.thin_epsilon,
                       .memory_limit = options_.limits.most,
                       .most_points = options_.most_points});
  }
  search_within_limits(bounds, std::move(region));
}

void RoundRunner::search_within_limits(Bounds& bounds, Region region) {
  for (const double limit : options_.limits.picks) {
    const auto zone = zone_within(costs_, options_.known_epsilon, limit);
    if (!zone || !is_open(*zone)) continue;
    region.zones = {*zone};
    search_completely(bounds, region,
                      {.epsilon = options_.thin_epsilon,
                       .memory_limit = limit,
                       .keep_memory = true,
                       .most_points = options_.most_points});
  }
}

void RoundRunner::search_completely(Bounds& bounds, const Region& region,
                                    const EvaluationOptions& options) {
  bounds.tighten(limits(region));
  evaluate(bounds, options);
  error_ = std::max(error_, evaluator_.error());
}

void RoundRunner::evaluate(const Bounds& bounds,
                           const EvaluationOptions& options) {
  const Stopwatch watch;
  evaluator_.run(&bounds, options);
  std::vector<KnownStrategy> found = evaluator_.strategies(schedule_);
  note_costs(found);
  std::move(found.begin(), found.end(), std::back_inserter(known_));
  known_ = pareto(std::move(known_));
  product_seconds_ += watch.seconds();
}

void RoundRunner::note_costs(const std::vector<KnownStrategy>& strategies) {
  for (const auto& strategy : strategies) costs_.push_back(strategy.cost);
  costs_ = pareto(std::move(costs_));
}

// The least cost of a known strategy under each weighting.
std::vector<double> RoundRunner::known_optima(
    const std::vector<Weights>& weights) const {
  std::vector<double> optima;
  for (const Weights& w : weights) {
    double least = kInfinity;
    for (const Point& cost : costs_) least = std::min(least, w.of(cost));
    optima.push_back(least);
  }
  return optima;
}

}  // namespace tensoropt
