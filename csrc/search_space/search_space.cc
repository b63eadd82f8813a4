#include "search_space/search_space.h"

#include <utility>

#include "common/check.h"
#include "problem/propagation.h"
#include "space/space_problem.h"

namespace tensoropt {

SearchSpace::SearchSpace(std::shared_ptr<const Graph> graph,
                         std::shared_ptr<const Registry> registry,
                         SpaceSetup setup)
    : graph_(std::move(graph)),
      registry_(std::move(registry)),
      setup_(std::move(setup)),
      analytic_(setup_.cluster, setup_.mesh),
      measured_(setup_.mesh, setup_.collectives, analytic_),
      collectives_(measured_, setup_.overheads.collective_s),
      operators_(setup_.operators, setup_.cluster.device),
      space_(
          *graph_, *registry_,
          {setup_.mesh, setup_.cluster.device, collectives_,
           setup_.operators.empty() ? nullptr : &operators_, setup_.overheads},
          setup_.space),
      host_(space_, setup_.step) {}

const StrategyNames& SearchSpace::names() {
  const std::lock_guard lock(names_mutex_);
  if (!names_) names_.emplace(space_, setup_.step);
  return *names_;
}

void SearchSpace::restrict_to(std::vector<ConfigMask> allowed) {
  const std::lock_guard lock(problem_mutex_);
  TO_ASSERT(!problem_ && allowed_.empty(), "the problem is made already");
  allowed_ = std::move(allowed);
}

const Problem& SearchSpace::problem(int num_threads) {
  const std::lock_guard lock(problem_mutex_);
  if (!problem_) {
    whole_ = SpaceProblem(space_, setup_.step).build(num_threads);
    problem_ = allowed_.empty() ? whole_ : restrict(whole_, allowed_);
  }
  return *problem_;
}

SpaceNodeId SearchSpace::blocked_node(const std::vector<ConfigMask>& allowed) {
  problem(0);
  const Problem part = restrict(whole_, allowed);
  Propagation propagation(part);
  std::vector<ConfigMask> masks = propagation.all_configs();
  return space_node(propagation.run(masks));
}

SearchResult SearchSpace::search(const SearchOptions& options,
                                 const std::vector<ConfigMask>& allowed) {
  const Problem& whole = problem(options.num_threads);
  const SearchResult found =
      allowed.empty() ? tensoropt::search(whole, options)
                      : tensoropt::search(restrict(whole, allowed), options);
  if (!host_.counts()) return found;
  return found.told([&](const Strategy& one) { return host_.of(one); },
                    host_.least());
}

BaselineResult SearchSpace::told(const BaselineResult& result) const {
  if (!host_.counts()) return result;
  return result.told([&](const Strategy& one) { return host_.of(one); });
}

void SearchSpace::build_in_flight(const std::vector<int>& numbers,
                                  int num_threads) {
  const std::lock_guard lock(problem_mutex_);
  std::vector<StepShape> shapes;
  for (const int number : numbers) {
    shapes.push_back({setup_.step.micro_batches, number});
  }
  std::vector<Problem> problems =
      SpaceProblem(space_, setup_.step).build_all(shapes, num_threads);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    in_flight_.insert_or_assign(numbers[i], std::move(problems[i]));
  }
}

SearchResult SearchSpace::search_in_flight(int number,
                                           const SearchOptions& options) {
  const Problem* problem = nullptr;
  {
    const std::lock_guard lock(problem_mutex_);
    const auto found = in_flight_.find(number);
    TO_CHECK(found != in_flight_.end(),
             "{} micro-batches in flight: build_in_flight was not called for "
             "that",
             number);
    problem = &found->second;
  }
  return tensoropt::search(*problem, options);
}

Baselines& SearchSpace::baselines(int num_threads) {
  const Problem& whole = problem(num_threads);
  const std::lock_guard lock(baselines_mutex_);
  if (!baselines_) baselines_.emplace(space_, whole);
  return *baselines_;
}

}  // namespace tensoropt
