// The planner of one model as Python holds it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "baselines/baselines.h"
#include "bindings/rules.h"
#include "cost/op_profile.h"
#include "search/frontier_tracking.h"
#include "space/space.h"

namespace tensoropt {

// Owns everything that a strategy space refers to.
class Planner {
 public:
  Planner(std::shared_ptr<Graph> graph, const Cluster& cluster,
          const Mesh& mesh, const CollectiveTable& measured,
          ConfigSpace config_space, double optimizer_state_factor,
          bool sharded_inputs, std::size_t max_configs, Rules rules,
          bool split_spatial, const std::vector<OpSample>& operators,
          const RuntimeOverheads& overheads)
      : graph_(std::move(graph)),
        rules_(std::move(rules)),
        cluster_(cluster),
        mesh_(mesh),
        analytic_(cluster_, mesh_),
        measured_(mesh_, measured, analytic_),
        collectives_(measured_, overheads.collective_s),
        operators_(operators, cluster_.device),
        space_(*graph_, registry(),
               {mesh_, cluster_.device, collectives_,
                operators.empty() ? nullptr : &operators_, overheads},
               {config_space,
                {optimizer_state_factor},
                sharded_inputs,
                max_configs,
                split_spatial}) {}
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  const StrategySpace& space() const { return space_; }
  const Registry& registry() const { return *rules_.registry; }
  const Mesh& mesh() const { return mesh_; }
  const OpProfile& operators() const { return operators_; }

  const Problem& problem(int num_threads) {
    if (!problem_) problem_ = space_.build_problem(num_threads);
    return *problem_;
  }

  // Restricted to configs that a mask per node allows, if there are masks.
  SearchResult run(const SearchOptions& options,
                   const std::vector<std::vector<bool>>& allowed) {
    const Problem& whole = problem(options.num_threads);
    return allowed.empty() ? search(whole, options)
                           : search(restrict(whole, allowed), options);
  }

  Baselines& baselines(int num_threads) {
    if (!baselines_) baselines_.emplace(space_, problem(num_threads));
    return *baselines_;
  }

 private:
  std::shared_ptr<Graph> graph_;
  Rules rules_;
  Cluster cluster_;
  Mesh mesh_;
  AnalyticCollectives analytic_;
  MeasuredCollectives measured_;
  DelayedCollectives collectives_;
  OpProfile operators_;
  StrategySpace space_;
  std::optional<Problem> problem_;
  std::optional<Baselines> baselines_;
};

// The per-rank form of a call, as a dict of plain values.
pybind11::dict form_dict(const LocalForm& form);

// Adds what tells and takes measured times of operators.
void bind_op_profile(
    pybind11::module_& module,
    pybind11::class_<Planner, std::shared_ptr<Planner>>& planner);

}  // namespace tensoropt
