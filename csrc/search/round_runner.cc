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
// So many times more may be left by the first look.
constexpr std::int64_t kFirstLookCells = 8;
// How far from an optimum strategies are looked for at first, and at least.
constexpr double kFirstSlack = 0.1;
constexpr double kLeastSlack = 1e-7;
// Rounds before the last one only look for strategies: they thin so many times
// more.
constexpr double kRoughness = 10;
// Weightings of the bounds, and questions in addition to the first look.
constexpr std::size_t kMaxWeights = 32;
constexpr std::size_t kMoreQuestions = 8;
// More corners than can be looked at at a time are looked at in so many groups.
constexpr std::size_t kMaxGroups = 8;

template <typename T>
bool contains(const std::vector<T>& values, const T& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

CornerSearch::CornerSearch(const MinPlusPlan& plan, const Schedule& schedule,
                           const CornerSearchOptions& options,
                           const std::vector<Point>& given, FirstLook& look,
                           Evaluation& evaluation)
    : plan_(plan),
      schedule_(schedule),
      options_(options),
      look_(look),
      evaluation_(evaluation),
      known_(look.strategies()),
      costs_(given),
      first_cells_(given.empty() ? kFirstCells : kFirstCellsIfGiven) {
  note_costs(known_);
}

void CornerSearch::run() {
  std::int64_t most_cells = first_cells_;
  while (!round(most_cells)) most_cells *= kMoreCells;
}

CornerLimits CornerSearch::look_limits() const {
  return first_limits(aim_at(open_corners()));
}

// The corners that strategies may be below, as far as the first look can say.
std::vector<Point> CornerSearch::open_corners() const {
  std::vector<Point> corners =
      corners_between(costs_, options_.known_epsilon, options_.memory_limit);
  std::erase_if(corners, [&](Point corner) {
    for (std::size_t w = 0; w < look_.weights().size(); ++w) {
      const double least = look_.optima()[w] * (1 - plan_.rounding());
      if (look_.weights()[w].of(corner) < least) return true;
    }
    return false;
  });
  return join_corners(std::move(corners), kMaxGroups * kMaxCorners);
}

CornerSearch::Aim CornerSearch::aim_at(
    const std::vector<Point>& corners) const {
  const auto weights = hull_weights(costs_, kMaxWeights);
  return {join_corners(corners, kMaxCorners), weights, known_optima(weights),
          kInfinity};
}

// Looks at about `most_cells` cells; returns whether these were all.
bool CornerSearch::round(std::int64_t most_cells) {
  const std::vector<Point> corners = open_corners();
  if (corners.empty()) return true;
  ++num_rounds_;
  Aim aim = aim_at(corners);
  const auto lower_slack = [&](auto&& estimate_alive, std::int64_t most) {
    while (aim.slack > kLeastSlack && estimate_alive() > most) {
      aim.slack = std::min(aim.slack / 2, kFirstSlack);
    }
  };
  const std::int64_t most_after_look = kFirstLookCells * most_cells;
  if (look_.estimate_alive(first_limits(aim)) > most_after_look) ask_at(aim);
  lower_slack([&] { return look_.estimate_alive(first_limits(aim)); },
              most_after_look);
  Bounds bounds(plan_, look_, first_limits(aim), limits(aim),
                options_.num_threads);
  lower_slack([&] { return bounds.estimate_alive(limits(aim)); }, most_cells);
  bounds.aim(limits(aim));
  num_alive_ = bounds.num_alive();
  if (std::isinf(aim.slack)) {
    search_all(bounds, std::move(aim), corners);
    return true;
  }
  evaluate(bounds, std::max(kRoughness * options_.thin_epsilon, aim.slack));
  return false;
}

CornerLimits CornerSearch::limits(const Aim& aim) const {
  return CornerLimits(aim.weights, aim.optima, aim.corners, aim.slack,
                      plan_.rounding());
}

CornerLimits CornerSearch::first_limits(const Aim& aim) const {
  return CornerLimits(look_.weights(), look_.optima(), aim.corners, aim.slack,
                      plan_.rounding());
}

// Has the first look go on with the weightings that rule out most.
void CornerSearch::ask_at(const Aim& aim) {
  std::vector<Weights> questions;
  const std::vector<std::size_t> tightest = limits(aim).tightest();
  for (const std::size_t w : tightest) {
    const Weights weights = aim.weights[w];
    if (questions.size() < kMoreQuestions &&
        !contains(look_.weights(), weights) && !contains(questions, weights)) {
      questions.push_back(weights);
    }
  }
  look_.ask(questions);
}

// Corners that had to be joined are searched in groups that need not be.
void CornerSearch::search_all(Bounds& bounds, Aim aim,
                              const std::vector<Point>& corners) {
  error_ = 0;
  for (std::size_t first = 0; first < corners.size(); first += kMaxCorners) {
    const std::size_t last = std::min(first + kMaxCorners, corners.size());
    aim.corners.assign(corners.begin() + first, corners.begin() + last);
    bounds.aim(limits(aim));
    evaluate(bounds, options_.thin_epsilon);
    error_ = std::max(error_, evaluation_.error());
  }
}

void CornerSearch::evaluate(const Bounds& bounds, double epsilon) {
  const Stopwatch watch;
  evaluation_.run(&bounds, epsilon, options_.memory_limit);
  std::vector<KnownStrategy> found = evaluation_.strategies(schedule_);
  note_costs(found);
  std::move(found.begin(), found.end(), std::back_inserter(known_));
  known_ = pareto(std::move(known_));
  product_seconds_ += watch.seconds();
}

void CornerSearch::note_costs(const std::vector<KnownStrategy>& strategies) {
  for (const auto& strategy : strategies) costs_.push_back(strategy.cost);
  costs_ = pareto(std::move(costs_));
}

// The least cost of a known strategy under each weighting.
std::vector<double> CornerSearch::known_optima(
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
