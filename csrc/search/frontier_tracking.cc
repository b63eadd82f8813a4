#include "search/frontier_tracking.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "common/workers.h"
#include "search/memory_limits.h"
#include "search/order/domains.h"
#include "search/solution.h"
#include "search/stage.h"
#include "search/stage_runner.h"
#include "search/stopwatch.h"

namespace tensoropt {

namespace {

// Conditioning makes tables over three and more nodes; a cell takes about 50
// bytes while bounds are computed.
constexpr double kMaxConditioningCells = 1e8;
// The share of the error budget that known strategies may use up.
constexpr double kKnownShare = 0.8;

void validate(const Problem& problem, const SearchOptions& options) {
  validate(problem);
  TO_CHECK(!problem.nodes.empty(), "the problem has no node");
  TO_CHECK(options.epsilon >= 0 && std::isfinite(options.epsilon),
           "epsilon must be 0 (exact) or a positive number, got {}",
           options.epsilon);
  TO_CHECK(options.memory_limit >= 0,
           "memory_limit must not be negative, got {}", options.memory_limit);
  for (const double limit : options.pick_limits) {
    TO_CHECK(limit >= 0, "pick_limits must not be negative, got {}", limit);
  }
  TO_CHECK(!options.only_picks || !memory_limits(options).picks.empty(),
           "only_picks without a limit promises nothing; give memory_limit or "
           "pick_limits below it");
  for (const Point other : options.others) {
    TO_CHECK(other.memory >= 0 && other.time >= 0,
             "others must not cost less than nothing, got {} B and {} s",
             other.memory, other.time);
  }
  TO_CHECK(options.max_conditioning_work >= 0,
           "max_conditioning_work must not be negative, got {}",
           options.max_conditioning_work);
}

StageOptions stage_options(const SearchOptions& options, Workers& workers,
                           PassMemory& memory) {
  const double known = std::expm1(kKnownShare * std::log1p(options.epsilon));
  return {.known_epsilon = known,
          .thin_epsilon = (1 + options.epsilon) / (1 + known) - 1,
          .limits = memory_limits(options),
          .use_bounds = options.use_bounds,
          .workers = workers,
          .memory = memory};
}

void check_configs(const Problem& problem, const std::vector<int>& config) {
  TO_CHECK(config.size() == problem.nodes.size(), "{} configs for {} nodes",
           config.size(), problem.nodes.size());
  for (std::size_t n = 0; n < config.size(); ++n) {
    const NodeTable& table = *problem.nodes[n];
    TO_CHECK(0 <= config[n] && config[n] < table.num_configs(),
             "node {}: config {}, but it has {}", n, config[n],
             table.num_configs());
    TO_CHECK(!table.choices(config[n]).empty(),
             "node {}: config {} is forbidden", n, config[n]);
  }
  for (std::size_t e = 0; e < problem.edges.size(); ++e) {
    const Problem::Edge& edge = problem.edges[e];
    const int source = config[edge.source];
    const int target = config[edge.target];
    TO_CHECK(!edge.table->choices(source, target).empty(),
             "edge {} forbids config {} of node {} with config {} of node {}",
             e, source, edge.source, target, edge.target);
  }
}

}  // namespace

// Builds a result from one exact solution or several heuristic ones.
class Search {
 public:
  Search(const Problem& problem, const SearchOptions& options)
      : problem_(problem),
        options_(options),
        schedule_options_{options.algorithm},
        workers_(options.num_threads),
        stage_options_(stage_options(options, workers_, memory_)) {}

  std::optional<SearchResult> run() {
    const Stopwatch watch;
    const std::vector<std::shared_ptr<Solution>> scheduled = schedule();
    result_.stats_.schedule_seconds = watch.seconds();
    result_.min_memory_ = std::numeric_limits<double>::infinity();
    result_.min_time_ = std::numeric_limits<double>::infinity();
    for (const auto& solution : scheduled) solve(solution);
    if (result_.solutions_.empty() && result_.exact()) return std::nullopt;
    TO_CHECK(!result_.solutions_.empty(),
             "heuristic elimination found no strategy; raise "
             "max_conditioning_work (now {}) to search exactly",
             options_.max_conditioning_work);
    if (!result_.exact()) {
      result_.epsilon_ = std::numeric_limits<double>::infinity();
    }
    unite();
    return std::move(result_);
  }

 private:
  std::vector<std::shared_ptr<Solution>> schedule() {
    std::vector<std::shared_ptr<Solution>> solutions{
        make_solution(problem_, {})};
    const ConditioningBudget budget{options_.max_conditioning_work,
                                    kMaxConditioningCells};
    if (budget.allows(solutions.front()->schedule())) return solutions;
    solutions.clear();
    result_.heuristics_ = options_.heuristics;
    if (result_.heuristics_.empty()) {
      result_.heuristics_ = {{1.0}, {0.5}, {0.0}};
    }
    // Hubs are fixed instead of waiting, and a schedule is made many times.
    ScheduleOptions without_hubs = schedule_options_;
    without_hubs.hubs.emplace();
    int likely = 1;
    for (const Heuristic& heuristic : result_.heuristics_) {
      const std::vector<int> fixed =
          fix_hubs(problem_, heuristic, without_hubs, budget, likely);
      likely = static_cast<int>(std::count_if(fixed.begin(), fixed.end(),
                                              [](int c) { return c >= 0; }));
      result_.stats_.heuristic_eliminations += likely;
      solutions.push_back(make_solution(problem_, fixed));
    }
    return solutions;
  }

  std::shared_ptr<Solution> make_solution(const Problem& problem,
                                          const std::vector<int>& fixed) const {
    return std::make_shared<Solution>(problem, fixed, schedule_options_);
  }

  void solve(const std::shared_ptr<Solution>& solution) {
    note_schedule(*solution);
    StageRunner search(schedule_options_, stage_options_, options_.many_cells,
                       options_.others);
    search.run(solution);
    if (solution->known().empty()) return;
    result_.solutions_.insert(result_.solutions_.end(),
                              search.solutions().begin(),
                              search.solutions().end());
    result_.min_memory_ =
        std::min(result_.min_memory_, solution->known().front().cost.memory);
    result_.min_time_ =
        std::min(result_.min_time_, solution->known().back().cost.time);
    result_.epsilon_ = search.error();
    note(search);
  }

  void note_schedule(const Solution& solution) {
    const Schedule& schedule = solution.schedule();
    SearchStats& stats = result_.stats_;
    stats.branch_eliminations += schedule.num_branch;
    stats.node_eliminations += schedule.num_node;
    stats.conditioned_eliminations += schedule.num_conditioning;
    for (const Term& term : schedule.terms) {
      stats.products_reused += term.left >= 0 ? 1 : 0;
    }
    stats.products_reused -= solution.num_products();
    stats.cells += solution.num_cells();
  }

  void note(const StageRunner& search) {
    SearchStats& stats = result_.stats_;
    const StageStats& solved = search.stats();
    stats.bound_seconds += solved.bound_seconds;
    stats.product_seconds += solved.product_seconds;
    stats.recombine_seconds += search.recombine_seconds();
    stats.bound_passes += solved.passes;
    stats.rounds += solved.rounds;
    stats.cells_alive += solved.cells_alive;
    stats.products_computed += solved.products;
    stats.pairs += solved.product.pairs;
    stats.pairs_pruned += solved.product.pairs_pruned;
    stats.largest_frontier =
        std::max(stats.largest_frontier, solved.product.largest_frontier);
  }

  // The points of all solutions that no other one dominates.
  void unite() {
    FrontierBuilder builder({}, options_.memory_limit);
    for (std::size_t s = 0; s < result_.solutions_.size(); ++s) {
      const std::vector<KnownStrategy>& known = result_.solutions_[s]->known();
      for (std::size_t i = 0; i < known.size(); ++i) {
        builder.add(known[i].cost, static_cast<std::uint32_t>(s),
                    static_cast<std::uint32_t>(i));
      }
    }
    Frontier frontier;
    builder.move_to(frontier);
    for (std::size_t i = 0; i < frontier.size(); ++i) {
      result_.points_.push_back({frontier.memory[i], frontier.time[i]});
      result_.origins_.push_back({static_cast<int>(frontier.left[i]),
                                  static_cast<std::size_t>(frontier.right[i])});
    }
  }

  const Problem& problem_;
  const SearchOptions& options_;
  const ScheduleOptions schedule_options_;
  Workers workers_;
  PassMemory memory_;
  const StageOptions stage_options_;
  SearchResult result_;
};

Strategy SearchResult::unroll(int point) const {
  TO_CHECK(0 <= point && point < static_cast<int>(points_.size()),
           "point {} of a frontier of {}", point, points_.size());
  const Origin& origin = origins_[point];
  Strategy strategy = solutions_[origin.solution]->unroll(origin.known);
  strategy.time = std::max(strategy.time, points_[point].time);
  return strategy;
}

SearchResult SearchResult::told(const LeastStepTime& time_s,
                                double least_s) const {
  const Told told =
      tell(points_, [&](int point) { return time_s(unroll(point)); });
  SearchResult result = *this;
  result.points_ = told.points;
  result.origins_.clear();
  for (const int point : told.from) {
    result.origins_.push_back(origins_[point]);
  }
  result.epsilon_ = (1 + epsilon_) * told.ratio(points_, least_s) - 1;
  return result;
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
  if (!Domains(problem, {}).empty_node().is_none()) return std::nullopt;
  return Search(problem, options).run();
}

std::vector<Point> evaluate(const Problem& problem,
                            const std::vector<int>& config, double epsilon) {
  validate(problem);
  check_configs(problem, config);
  std::vector<ConfigMask> allowed;
  for (std::size_t n = 0; n < config.size(); ++n) {
    allowed.emplace_back(problem.nodes[n]->num_configs());
    allowed.back()[config[n]] = true;
  }
  SearchOptions options;
  options.epsilon = epsilon;
  const SearchResult result = search(restrict(problem, allowed), options);
  return {result.points().begin(), result.points().end()};
}

}  // namespace tensoropt
