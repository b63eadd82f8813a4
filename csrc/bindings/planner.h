// The planner of one model as Python holds it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "baselines/baselines.h"
#include "bindings/rules.h"
#include "common/check.h"
#include "cost/op_profile.h"
#include "problem/propagation.h"
#include "search/frontier_tracking.h"
#include "space/space.h"
#include "space/strategy_names.h"

namespace tensoropt {

// Where and how a model is planned for.
struct PlannerSetup {
  Cluster cluster;
  Mesh mesh;
  SpaceOptions space;
  CollectiveTable collectives;      // measured ones
  std::vector<OpSample> operators;  // measured ones
  RuntimeOverheads overheads;
};

// Owns everything that a strategy space refers to. May be used by several
// threads: what is computed when it is first asked for is computed once. Rules
// may call Python, so the caller must not hold the interpreter's lock then.
class Planner {
 public:
  Planner(std::shared_ptr<Graph> graph, Rules rules, PlannerSetup setup)
      : graph_(std::move(graph)),
        rules_(std::move(rules)),
        setup_(std::move(setup)),
        analytic_(setup_.cluster, setup_.mesh),
        measured_(setup_.mesh, setup_.collectives, analytic_),
        collectives_(measured_, setup_.overheads.collective_s),
        operators_(setup_.operators, setup_.cluster.device),
        space_(*graph_, registry(),
               {setup_.mesh, setup_.cluster.device, collectives_,
                setup_.operators.empty() ? nullptr : &operators_,
                setup_.overheads},
               setup_.space) {}
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  const StrategySpace& space() const { return space_; }
  const Registry& registry() const { return *rules_.registry; }
  const Mesh& mesh() const { return setup_.mesh; }
  const OpProfile& operators() const { return operators_; }

  const StrategyNames& names() {
    const std::lock_guard lock(names_mutex_);
    if (!names_) names_.emplace(space_);
    return *names_;
  }

  // From now on there are only strategies with the configs of each node that
  // its mask allows. Once, before anything is asked for.
  void restrict_to(std::vector<ConfigMask> allowed) {
    const std::lock_guard lock(problem_mutex_);
    TO_ASSERT(!problem_ && allowed_.empty(), "the problem is made already");
    allowed_ = std::move(allowed);
  }

  const Problem& problem(int num_threads) {
    const std::lock_guard lock(problem_mutex_);
    if (!problem_) {
      whole_ = space_.build_problem(num_threads);
      problem_ = allowed_.empty() ? whole_ : restrict(whole_, allowed_);
    }
    return *problem_;
  }

  // A node none of whose configs, of those that these masks allow of the whole
  // space, can be combined with its neighbours'; -1 if none is found.
  int blocked_node(const std::vector<ConfigMask>& allowed) {
    problem(0);
    const Problem part = restrict(whole_, allowed);
    Propagation propagation(part);
    std::vector<ConfigMask> masks = propagation.all_configs();
    return propagation.run(masks);
  }

  // Restricted to configs that a mask per node allows, if there are masks.
  SearchResult run(const SearchOptions& options,
                   const std::vector<std::vector<bool>>& allowed) {
    const Problem& whole = problem(options.num_threads);
    return allowed.empty() ? search(whole, options)
                           : search(restrict(whole, allowed), options);
  }

  Baselines& baselines(int num_threads) {
    const Problem& whole = problem(num_threads);
    const std::lock_guard lock(baselines_mutex_);
    if (!baselines_) baselines_.emplace(space_, whole);
    return *baselines_;
  }

 private:
  const std::shared_ptr<Graph> graph_;
  const Rules rules_;
  const PlannerSetup setup_;
  const AnalyticCollectives analytic_;
  const MeasuredCollectives measured_;
  const DelayedCollectives collectives_;
  const OpProfile operators_;
  const StrategySpace space_;
  std::mutex problem_mutex_;
  std::vector<ConfigMask> allowed_;  // by node; none: all configs
  Problem whole_;
  std::optional<Problem> problem_;
  std::mutex names_mutex_;
  std::optional<StrategyNames> names_;
  std::mutex baselines_mutex_;
  std::optional<Baselines> baselines_;
};

// The per-rank form of a call, as a dict of plain values.
pybind11::dict form_dict(const LocalForm& form);

// Adds what tells and takes measured times of operators.
void bind_op_profile(
    pybind11::module_& module,
    pybind11::class_<Planner, std::shared_ptr<Planner>>& planner);

}  // namespace tensoropt
