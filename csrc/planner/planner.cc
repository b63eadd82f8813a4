#include "planner/planner.h"

#include <utility>

#include "common/check.h"
#include "problem/propagation.h"
#include "space/space_problem.h"

namespace tensoropt {

Planner::Planner(std::shared_ptr<const Graph> graph,
                 std::shared_ptr<const Registry> registry, PlannerSetup setup)
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
          setup_.space) {}

const StrategyNames& Planner::names() {
  const std::lock_guard lock(names_mutex_);
  if (!names_) names_.emplace(space_, setup_.step);
  return *names_;
}

void Planner::restrict_to(std::vector<ConfigMask> allowed) {
  const std::lock_guard lock(problem_mutex_);
  TO_ASSERT(!problem_ && allowed_.empty(), "the problem is made already");
  allowed_ = std::move(allowed);
}

const Problem& Planner::problem(int num_threads) {
  const std::lock_guard lock(problem_mutex_);
  if (!problem_) {
    whole_ = SpaceProblem(space_, setup_.step).build(num_threads);
    problem_ = allowed_.empty() ? whole_ : restrict(whole_, allowed_);
  }
  return *problem_;
}

SpaceNodeId Planner::blocked_node(const std::vector<ConfigMask>& allowed) {
  problem(0);
  const Problem part = restrict(whole_, allowed);
  Propagation propagation(part);
  std::vector<ConfigMask> masks = propagation.all_configs();
  return SpaceNodeId(propagation.run(masks));
}

SearchResult Planner::run(const SearchOptions& options,
                          const std::vector<std::vector<bool>>& allowed) {
  const Problem& whole = problem(options.num_threads);
  return allowed.empty() ? search(whole, options)
                         : search(restrict(whole, allowed), options);
}

Baselines& Planner::baselines(int num_threads) {
  const Problem& whole = problem(num_threads);
  const std::lock_guard lock(baselines_mutex_);
  if (!baselines_) baselines_.emplace(space_, whole);
  return *baselines_;
}

}  // namespace tensoropt
