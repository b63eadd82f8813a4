#include "search/stage_runner.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "search/stopwatch.h"

namespace tensoropt {

namespace {

// Weightings that are asked about at first, in large stages and in the last
// one.
constexpr std::size_t kFirstQuestions = 11;
constexpr std::size_t kMoreQuestions = 12;
constexpr std::size_t kLastQuestions = 32;
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

// Nodes that share a table take what any of them takes: then they still fold,
// and a repeated block may do anywhere what it does somewhere.
std::vector<ConfigMask> shared_masks(const Problem& problem,
                                     std::vector<ConfigMask> masks) {
  std::map<const NodeTable*, ConfigMask> by_table;
  for (std::size_t n = 0; n < masks.size(); ++n) {
    const auto [entry, added] =
        by_table.try_emplace(problem.nodes[n].get(), masks[n]);
    if (added) continue;
    std::transform(masks[n].begin(), masks[n].end(), entry->second.begin(),
                   entry->second.begin(), std::logical_or<>());
  }
  for (std::size_t n = 0; n < masks.size(); ++n) {
    masks[n] = by_table[problem.nodes[n].get()];
  }
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
  if (!found_any_) {
    stage.probe({}, kFirstQuestions, Depth::kNearRoot);
    const Outcome outcome = rule_out(solution, stage);
    if (outcome.over) return outcome.next;
  }
  stage.probe(costs_, kMoreQuestions, Depth::kWhole);
  const Outcome outcome = rule_out(solution, stage);
  if (!outcome.over) stage.search(costs_);
  return outcome.next;
}

// What follows from the strategies that the stage looked at.
StageRunner::Outcome StageRunner::rule_out(const Solution& solution,
                                           Stage& stage) {
  gather(solution);
  if (!found_any_) return {true, nullptr};
  recombine();
  const auto promising = stage.promising(costs_);
  if (!promising) return {true, nullptr};
  auto next = next_stage(solution, *promising);
  return {next != nullptr, std::move(next)};
}

void StageRunner::search(Solution& solution, Stage& stage) {
  const bool first = !found_any_;
  if (first) {
    stage.probe({}, kFirstQuestions, Depth::kWhole);
  } else {
    stage.probe(costs_, kLastQuestions, Depth::kWhole);
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
  const Solution& whole = *solutions_.front();
  const Problem& problem = whole.problem();
  std::vector<ConfigMask> masks = shared_masks(problem, used_);
  if (masks == recombined_) return;
  // Such a small problem does not repay looking for its best hubs.
  ScheduleOptions schedule = schedule_options_;
  schedule.hubs = whole.schedule().hubs;
  const auto mixed = std::make_shared<Solution>(restrict(problem, masks),
                                                std::vector<int>{}, schedule);
  recombined_ = std::move(masks);
  // Other nodes are hubs where some have one config left.
  if (mixed->num_cells() > whole.num_cells()) return;
  StageOptions options = options_;
  options.known_epsilon *= kRecombinedShare;
  options.thin_epsilon *= kRecombinedRoughness;
  options.most_points = kRecombinedPoints;
  Stage stage(*mixed, options);
  stage.probe({}, kFirstQuestions, Depth::kWhole);
  stage.search(thinned(others_, options_.known_epsilon));
  note(stage);
  solutions_.push_back(mixed);
  gather(*mixed);
  recombine_seconds_ += watch.seconds();
}

// Takes note of the strategies of a solution.
void StageRunner::gather(const Solution& solution) {
  if (used_.empty()) {
    for (const auto& node : solution.problem().nodes) {
      used_.emplace_back(node->num_configs(), false);
    }
  }
  for (std::size_t i = 0; i < solution.known().size(); ++i) {
    costs_.push_back(solution.known()[i].cost);
    const Strategy strategy = solution.unroll(i);
    for (std::size_t n = 0; n < used_.size(); ++n) {
      used_[n][strategy.config[n]] = true;
    }
  }
  costs_ = pareto(std::move(costs_));
  found_any_ = found_any_ || !solution.known().empty();
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
