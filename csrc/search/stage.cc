#include "search/stage.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "search/stopwatch.h"

namespace tensoropt {

namespace {

// Larger tables say little about single configs.
constexpr std::size_t kFewCells = 5000;
// So many weightings are solved at a time for zones that are open, again as
// long as at most this part of them stays open.
constexpr std::size_t kZoneWeightings = 4;
constexpr double kStillWorthSolving = 0.75;

const Solution& with_tables(Solution& solution) {
  solution.load_tables();
  return solution;
}

}  // namespace

Stage::Stage(Solution& solution, const StageOptions& options)
    : solution_(solution),
      options_(options),
      graph_(with_tables(solution).pool(), solution.root(), solution.tables()),
      evaluator_(solution.pool(), solution.root(), solution.tables(),
                 options.workers) {}

void Stage::probe(const std::vector<Point>& given, std::size_t max_weightings,
                  Depth depth) {
  const Stopwatch watch;
  probe_.emplace(graph_, solution_.schedule(), options_.workers,
                 options_.memory, depth);
  if (!options_.use_bounds) {
    probe_->solve_between(0, options_.limits, 2);
  } else if (given.empty()) {
    probe_->solve_between(options_.known_epsilon, options_.limits,
                          max_weightings);
  } else {
    probe_->solve(hull_weights(given, max_weightings));
    probe_zones(given);
  }
  solution_.add_known(probe_->strategies());
  stats_.passes += static_cast<int>(probe_->weights().size());
  stats_.bound_seconds += watch.seconds();
}

// Where others' strategies are among the known, zones between these may be
// ruled out by weightings that are of no edge of the problem's own hull.
void Stage::probe_zones(const std::vector<Point>& given) {
  std::size_t num_open = std::numeric_limits<std::size_t>::max();
  while (true) {
    const std::vector<Point> zones = round_runner(given).open_zones();
    if (zones.size() > kStillWorthSolving * num_open) return;
    num_open = zones.size();
    const auto weightings = probe_->weightings_for(zones, kZoneWeightings);
    if (weightings.empty()) return;
    probe_->solve(weightings);
  }
}

std::optional<std::vector<ConfigMask>> Stage::promising(
    const std::vector<Point>& given) {
  const Stopwatch watch;
  const ZoneLimits limits = round_runner(given).probe_limits();
  const auto& terms = solution_.schedule().terms;
  const auto scopes =
      scopes_of(solution_.schedule(), solution_.problem(), solution_.pool());
  std::vector<ConfigMask> masks =
      Propagation(solution_.problem()).all_configs();
  std::map<std::pair<int, std::size_t>, ConfigMask> known;
  for (std::size_t t = 0; t < terms.size(); ++t) {
    const int id = terms[t].expression;
    if (!probe_->tells_about(id) || graph_.volume(id) > kFewCells) continue;
    for (std::size_t axis = 0; axis < scopes[t].size(); ++axis) {
      const int node = scopes[t][axis];
      if (node < 0) continue;
      const auto [entry, added] = known.try_emplace({id, axis});
      if (added) entry->second = promising(id, axis, limits);
      const auto& configs =
          solution_.domains().configs_of(solution_.domains().id(node));
      for (std::size_t c = 0; c < configs.size(); ++c) {
        if (!entry->second[c]) masks[node][configs[c]] = false;
      }
    }
  }
  stats_.bound_seconds += watch.seconds();
  if (Propagation(solution_.problem()).run(masks).is_none()) return masks;
  error_ = options_.known_epsilon;
  return std::nullopt;
}

// By place in the domain of the axis.
ConfigMask Stage::promising(int expression, std::size_t axis,
                            const ZoneLimits& limits) const {
  const std::vector<int>& dims = solution_.pool()[expression].dims;
  std::size_t stride = 1;
  for (std::size_t i = axis + 1; i < dims.size(); ++i) stride *= dims[i];
  ConfigMask mask(dims[axis], false);
  for (std::size_t cell = 0; cell < graph_.volume(expression); ++cell) {
    const std::size_t config = cell / stride % dims[axis];
    if (!mask[config]) {
      mask[config] = probe_->may_improve(expression, cell, limits);
    }
  }
  return mask;
}

void Stage::search(const std::vector<Point>& given) {
  probe_->solve_ends();
  solution_.add_known(probe_->strategies());
  if (options_.use_bounds) {
    search_bounded(given);
  } else {
    search_unbounded();
  }
  stats_.product = evaluator_.stats();
  stats_.products = evaluator_.num_products();
}

RoundRunner Stage::round_runner(const std::vector<Point>& given) {
  return RoundRunner(graph_, solution_.schedule(),
                     {.known_epsilon = options_.known_epsilon,
                      .thin_epsilon = options_.thin_epsilon,
                      .limits = options_.limits,
                      .most_points = options_.most_points,
                      .workers = options_.workers},
                     given, *probe_, evaluator_);
}

void Stage::search_bounded(const std::vector<Point>& given) {
  const Stopwatch watch;
  RoundRunner search = round_runner(given);
  search.run();
  solution_.add_known(search.known());
  error_ = (1 + options_.known_epsilon) * (1 + search.error()) - 1;
  stats_.rounds = search.num_rounds();
  stats_.cells_alive = search.num_alive();
  stats_.product_seconds = search.product_seconds();
  stats_.bound_seconds += watch.seconds() - stats_.product_seconds;
}

void Stage::search_unbounded() {
  if (solution_.known().empty()) return;
  const Stopwatch watch;
  const double epsilon =
      (1 + options_.known_epsilon) * (1 + options_.thin_epsilon) - 1;
  evaluator_.run(nullptr, {.epsilon = epsilon,
                           .memory_limit = options_.limits.most,
                           .keep_memory = !options_.limits.picks.empty()});
  solution_.add_known(evaluator_.strategies(solution_.schedule()));
  error_ = evaluator_.error();
  stats_.rounds = 1;
  stats_.product_seconds = watch.seconds();
}

}  // namespace tensoropt
