#include "search/engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "common/parallel.h"
#include "search/domains.h"
#include "search/solution.h"
#include "search/stopwatch.h"

namespace tensoropt {

namespace {

// Conditioning makes tables over three and more nodes; a cell takes about 100
// bytes while bounds are computed.
constexpr double kMaxConditioningCells = 1e7;

void validate(const Problem& problem, const SearchOptions& options) {
  validate(problem);
  TO_CHECK(!problem.nodes.empty(), "the problem has no node");
  TO_CHECK(options.epsilon >= 0 && std::isfinite(options.epsilon),
           "epsilon must be 0 (exact) or a positive number, got {}",
           options.epsilon);
  TO_CHECK(options.memory_limit >= 0,
           "memory_limit must not be negative, got {}", options.memory_limit);
  TO_CHECK(options.max_conditioning_work >= 0,
           "max_conditioning_work must not be negative, got {}",
           options.max_conditioning_work);
}

}  // namespace

// Builds a result from one exact solution or several heuristic ones.
class Search {
 public:
  Search(const Problem& problem, const SearchOptions& options)
      : problem_(problem),
        options_(options),
        schedule_options_{options.algorithm, options.order_seed} {}

  std::optional<SearchResult> run() {
    const Stopwatch plan_watch;
    const std::vector<std::shared_ptr<Solution>> planned = plan();
    result_.stats_.plan_seconds = plan_watch.seconds();
    const Stopwatch watch;
    result_.min_memory_ = std::numeric_limits<double>::infinity();
    for (const auto& solution : planned) {
      solution->solve({options_.epsilon, options_.memory_limit,
                       resolve_num_threads(options_.num_threads),
                       options_.use_bounds});
      if (!solution->feasible()) continue;
      note(*solution);
      result_.solutions_.push_back(solution);
    }
    if (result_.solutions_.empty() && result_.exact()) return std::nullopt;
    TO_CHECK(!result_.solutions_.empty(),
             "heuristic elimination found no strategy; raise "
             "max_conditioning_work (now {}) to search exactly",
             options_.max_conditioning_work);
    unite();
    result_.stats_.solve_seconds = watch.seconds();
    return std::move(result_);
  }

 private:
  std::vector<std::shared_ptr<Solution>> plan() {
    auto exact = std::make_shared<Solution>(problem_, std::vector<int>{},
                                            schedule_options_);
    const ConditioningBudget budget{options_.max_conditioning_work,
                                    kMaxConditioningCells};
    if (budget.allows(exact->schedule())) return {exact};
    result_.heuristics_ = options_.heuristics;
    if (result_.heuristics_.empty()) {
      result_.heuristics_ = {{1.0}, {0.5}, {0.0}};
    }
    std::vector<std::shared_ptr<Solution>> solutions;
    for (const Heuristic& heuristic : result_.heuristics_) {
      const std::vector<int> fixed =
          fix_hubs(problem_, heuristic, schedule_options_, budget);
      result_.stats_.heuristic_eliminations += static_cast<int>(std::count_if(
          fixed.begin(), fixed.end(), [](int c) { return c >= 0; }));
      solutions.push_back(
          std::make_shared<Solution>(problem_, fixed, schedule_options_));
    }
    return solutions;
  }

  void note(const Solution& solution) {
    const Schedule& schedule = solution.schedule();
    SearchStats& stats = result_.stats_;
    stats.branch_eliminations += schedule.num_branch;
    stats.node_eliminations += schedule.num_node;
    stats.conditioned_eliminations += schedule.num_conditioning;
    int products = 0;
    for (const Term& term : schedule.terms) products += term.left >= 0;
    const SolveStats& solved = solution.stats();
    stats.bound_seconds += solved.bound_seconds;
    stats.product_seconds += solved.product_seconds;
    stats.bound_passes += solved.passes;
    stats.rounds += solved.rounds;
    stats.cells += solved.cells;
    stats.cells_alive += solved.cells_alive;
    stats.products_computed += solved.products;
    stats.products_reused += products - solution.num_products();
    stats.pairs += solved.product.pairs;
    stats.pairs_pruned += solved.product.pairs_pruned;
    stats.largest_frontier =
        std::max(stats.largest_frontier, solved.product.largest_frontier);
    result_.min_memory_ = std::min(result_.min_memory_, solution.min_memory());
    result_.epsilon_ = result_.exact()
                           ? solution.error()
                           : std::numeric_limits<double>::infinity();
  }

  // The points of all solutions that no other one dominates.
  void unite() {
    FrontierBuilder builder(/*delta=*/0, options_.memory_limit);
    for (std::size_t s = 0; s < result_.solutions_.size(); ++s) {
      const std::vector<Point>& points = result_.solutions_[s]->points();
      for (std::size_t i = 0; i < points.size(); ++i) {
        builder.add(points[i], static_cast<std::uint32_t>(s),
                    static_cast<std::uint32_t>(i));
      }
    }
    Frontier frontier;
    builder.move_to(frontier);
    for (std::size_t i = 0; i < frontier.size(); ++i) {
      result_.points_.push_back({frontier.memory[i], frontier.time[i]});
      result_.origins_.push_back({static_cast<int>(frontier.left[i]),
                                  static_cast<int>(frontier.right[i])});
    }
  }

  const Problem& problem_;
  const SearchOptions& options_;
  const ScheduleOptions schedule_options_;
  SearchResult result_;
};

Strategy SearchResult::unroll(int point) const {
  TO_CHECK(0 <= point && point < static_cast<int>(points_.size()),
           "point {} of a frontier of {}", point, points_.size());
  const Origin& origin = origins_[point];
  return solutions_[origin.solution]->unroll(origin.point);
}

SearchResult search(const Problem& problem, const SearchOptions& options) {
  validate(problem, options);
  auto result = Search(problem, options).run();
  TO_CHECK(result.has_value(),
           "no combination of configs is allowed by all tables; there is no "
           "strategy");
  return *std::move(result);
}

std::optional<SearchResult> search_if_any(const Problem& problem,
                                          const SearchOptions& options) {
  validate(problem, options);
  if (Domains(problem, {}).empty_node() >= 0) return std::nullopt;
  return Search(problem, options).run();
}

}  // namespace tensoropt
