#include "search/stage_runner.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "search/stopwatch.h"

namespace tensoropt {

namespace {

// Weightings that are solved at first, in large stages and in the last one.
constexpr std::size_t kFirstWeightings = 11;
constexpr std::size_t kMoreWeightings = 12;
constexpr std::size_t kLastWeightings = 32;
// The next stage must have at most this part of the cells.
constexpr double kWorthwhile = 0.5;
// Errors of recombinations, in those of the whole search. They prove nothing,
// they only have to be good: thinning by a little in every step is rarely as
// bad as it may be.
constexpr double kRecombinedShare = 0.3;
constexpr double kRecombinedRoughness = 20;
// Nor does a recombination keep more points of a cell: deep models have
// hundreds of steps, each of which may thin so little that frontiers grow with
// the depth.
constexpr std::size_t kRecombinedPoints = 1000;
// Of the whole problem's cells. Good strategies that differ much, at hubs above
// all, allow more together, which would take as long as what it is to spare.
constexpr double kSmallPart = 0.01;

// The configs of some strategies. Nodes that share a table take what any of
// them takes: then they still fold, and a repeated block may do anywhere what
// it does somewhere.
std::vector<ConfigMask> shared_masks(
    const Problem& problem, std::span<const StageRunner::Probed> strategies) {
  std::map<const NodeTable*, ConfigMask> by_table;
  for (std::size_t n = 0; n < problem.nodes.size(); ++n) {
    const NodeTable& table = *problem.nodes[n];
    ConfigMask& mask =
        by_table.try_emplace(&table, table.num_configs(), false).first->second;
    for (const auto& strategy : strategies) mask[strategy.config[n]] = true;
  }
  std::vector<ConfigMask> masks;
  for (const auto& node : problem.nodes) masks.push_back(by_table[node.get()]);
  return masks;
}

// Enough to say where nothing is to be found, and few zones to look at.
std::vector<Point> thinned(const std::vector<Point>& costs, double epsilon) {
  Frontier frontier;
  for (const Point cost : pareto(costs)) frontier.push_back(cost, 0, 0);
  const std::vector<bool> keep = thin(frontier.view(), {epsilon, epsilon});
  std::vector<Point> kept;
  for (std::size_t i = 0; i < keep.size(); ++i) {
    if (keep[i]) kept.push_back(frontier.view().point(i));
  }
  return kept;
}

}  // namespace

void StageRunner::run(std::shared_ptr<Solution> solution) {
  while (solution != nullptr) {
    Stage stage(*solution, options_);
    solutions_.push_back(solution);
    const bool large =
        options_.use_bounds && solution->num_cells() >= many_cells_;
    auto next = large ? narrow(*solution, stage) : nullptr;
    if (!large) search(*solution, stage);
    note(stage);
    solution = std::move(next);
  }
}

// The next stage, or null if there is none; then all was found.
std::shared_ptr<Solution> StageRunner::narrow(Solution& solution,
                                              Stage& stage) {
  // First of all a quick probe, which is enough for hubs.
  if (probed_.empty()) {
    stage.probe({}, kFirstWeightings, Depth::kNearRoot);
    const Outcome outcome = rule_out(solution, stage);
    if (outcome.over) return outcome.next;
  }
  stage.probe(costs_, kMoreWeightings, Depth::kWhole);
  const Outcome outcome = rule_out(solution, stage);
  if (!outcome.over) stage.search(costs_);
  return outcome.next;
}

// What follows from the strategies that the stage looked at.
StageRunner::Outcome StageRunner::rule_out(const Solution& solution,
                                           Stage& stage) {
  gather(solution);
  if (probed_.empty()) return {true, nullptr};
  recombine();
  const auto promising = stage.promising(costs_);
  if (!promising) return {true, nullptr};
  auto next = next_stage(solution, *promising);
  return {next != nullptr, std::move(next)};
}

void StageRunner::search(Solution& solution, Stage& stage) {
  const bool first = probed_.empty();
  if (first) {
    stage.probe({}, kFirstWeightings, Depth::kWhole);
  } else {
    stage.probe(costs_, kLastWeightings, Depth::kWhole);
  }
  gather(solution);
  if (!first) recombine();
  stage.search(costs_);
}

// Null if too little was ruled out.
std::shared_ptr<Solution> StageRunner::next_stage(
    const Solution& now, const std::vector<ConfigMask>& promising) const {
  auto next = std::make_shared<Solution>(restrict(now.problem(), promising),
                                         std::vector<int>{}, schedule_options_);
  const double most = kWorthwhile * static_cast<double>(now.num_cells());
  return static_cast<double>(next->num_cells()) <= most ? next : nullptr;
}

// In the whole problem: a stage may have left no known strategy.
void StageRunner::recombine() {
  const Stopwatch watch;
  std::sort(probed_.begin(), probed_.end(),
            [](const Probed& a, const Probed& b) {
              return a.cost.memory < b.cost.memory;
            });
  recombine(probed_);
  recombine_seconds_ += watch.seconds();
}

// Where all of them together allow too much, each half of them, with one in
// common: on a frontier most is to be had from neighbours.
void StageRunner::recombine(std::span<const Probed> strategies) {
  const Solution& whole = *solutions_.front();
  std::vector<ConfigMask> masks = shared_masks(whole.problem(), strategies);
  if (std::ranges::find(recombined_, masks) != recombined_.end()) return;
  const auto mixed = recombination(whole, masks);
  const bool small = mixed->num_cells() < many_cells_ ||
                     static_cast<double>(mixed->num_cells()) <=
                         kSmallPart * static_cast<double>(whole.num_cells());
  if (!small && strategies.size() > 2) {
    const std::size_t half = strategies.size() / 2;
    recombine(strategies.first(half + 1));
    recombine(strategies.subspan(half));
  } else if (mixed->num_cells() <= whole.num_cells()) {
    recombined_.push_back(std::move(masks));
    search_recombination(mixed);
  }
}

// The problem of the masks, with the hubs of the whole as long as that is
// small: looking for its best ones would take longer. But the whole's hubs may
// have one config left while others join as many nodes, whose tables double
// with each.
std::shared_ptr<Solution> StageRunner::recombination(
    const Solution& whole, const std::vector<ConfigMask>& masks) const {
  ScheduleOptions schedule = schedule_options_;
  schedule.hubs = whole.schedule().hubs;
  const Problem mixed = restrict(whole.problem(), masks);
  auto solution =
      std::make_shared<Solution>(mixed, std::vector<int>{}, schedule);
  if (solution->num_cells() < many_cells_) return solution;
  return std::make_shared<Solution>(mixed, std::vector<int>{},
                                    schedule_options_);
}

void StageRunner::search_recombination(const std::shared_ptr<Solution>& mixed) {
  StageOptions options = options_;
  options.known_epsilon *= kRecombinedShare;
  options.thin_epsilon *= kRecombinedRoughness;
  options.most_points = kRecombinedPoints;
  Stage stage(*mixed, options);
  stage.probe({}, kFirstWeightings, Depth::kWhole);
  stage.search(thinned(others_, options.known_epsilon));
  note(stage);
  solutions_.push_back(mixed);
  for (const KnownStrategy& known : mixed->known())
    costs_.push_back(known.cost);
  costs_ = pareto(std::move(costs_));
}

// Takes note of the strategies that a stage looked at.
void StageRunner::gather(const Solution& solution) {
  for (std::size_t i = 0; i < solution.known().size(); ++i) {
    costs_.push_back(solution.known()[i].cost);
    Probed probed{solution.known()[i].cost, solution.unroll(i).config};
    if (std::ranges::find(probed_, probed.config, &Probed::config) ==
        probed_.end()) {
      probed_.push_back(std::move(probed));
    }
  }
  costs_ = pareto(std::move(costs_));
}

void StageRunner::note(const Stage& stage) {
  const StageStats& solved = stage.stats();
  error_ = stage.error();
  stats_.bound_seconds += solved.bound_seconds;
  stats_.product_seconds += solved.product_seconds;
  stats_.passes += solved.passes;
  stats_.rounds += solved.rounds;
  stats_.cells_alive += solved.cells_alive;
  stats_.products += solved.products;
  stats_.product.add(solved.product);
}

}  // namespace tensoropt
