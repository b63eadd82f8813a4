#include "search/supporting_lines.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"
#include "common/workers.h"
#include "search/bounds/min_plus.h"
#include "search/bounds/pass_memory.h"
#include "search/bounds/weighted_probe.h"
#include "search/order/domains.h"
#include "search/solution.h"

namespace tensoropt {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Of the tables of a schedule: beyond that a pass is no quick look.
constexpr double kMostCells = 1e8;

}  // namespace

SupportingLines::SupportingLines(std::vector<Weights> weights,
                                 std::vector<double> optima)
    : weights_(std::move(weights)), optima_(std::move(optima)) {
  TO_ASSERT(weights_.size() == optima_.size(), "{} weightings, {} optima",
            weights_.size(), optima_.size());
  for (std::size_t w = 0; w < weights_.size(); ++w) {
    if (weights_[w].time == 0 && weights_[w].memory > 0) {
      least_bytes_ = std::max(least_bytes_, optima_[w] / weights_[w].memory);
    }
  }
}

double SupportingLines::least_seconds(double most_bytes) const {
  if (!has_strategies() || most_bytes < least_bytes_) return kInfinity;
  double least = 0;
  for (std::size_t w = 0; w < weights_.size(); ++w) {
    const auto [memory, time] = weights_[w];
    if (time == 0) continue;
    if (memory > 0 && most_bytes == kInfinity) continue;
    const double bytes = memory > 0 ? memory * most_bytes : 0;
    least = std::max(least, (optima_[w] - bytes) / time);
  }
  return least;
}

std::vector<Point> SupportingLines::steps(
    const std::vector<double>& limits) const {
  std::vector<Point> points;
  if (!has_strategies()) return points;
  const auto add = [&](double bytes, double seconds) {
    if (points.empty() || seconds < points.back().time) {
      points.push_back({bytes, seconds});
    }
  };
  double from = least_bytes_;
  for (const double limit : limits) {
    if (limit <= from) continue;
    add(from, least_seconds(limit));
    from = limit;
  }
  add(from, least_seconds(kInfinity));
  return points;
}

SupportingLines supporting_lines(const Problem& problem,
                                 const SupportingLinesOptions& options) {
  if (!Domains(problem, {}).empty_node().is_none()) return {};
  ScheduleOptions quick;
  quick.budget = {{.max_work = kInfinity, .max_cells = kMostCells}};
  Solution solution(problem, {}, quick);
  if (!solution.has_schedule() || solution.schedule().cells > kMostCells) {
    return {{{.memory = 0, .time = 1}}, {0}};
  }
  solution.load_tables();
  Workers workers(options.num_threads);
  PassMemory memory;
  const MinPlusGraph graph(solution.pool(), solution.root(), solution.tables());
  WeightedProbe probe(graph, solution.schedule(), workers, memory,
                      Depth::kNearRoot);
  probe.solve_between(options.epsilon, options.memory_limit, options.most);
  if (probe.strategies().empty()) return {};
  std::vector<double> optima = probe.optima();
  for (double& optimum : optima) optimum *= 1 - graph.rounding();
  return {probe.weights(), std::move(optima)};
}

}  // namespace tensoropt
