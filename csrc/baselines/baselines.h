// Strategies of other systems, in the same space and on the same costs: each is
// the space restricted to what the system considers, searched by the same
// engine.
//
//   Baselines baselines(space, problem);
//   const BaselineResult found = baselines.find(Baseline::kZero3, options);
//   for (const Point& p : found.points()) print(p.memory, p.time);
//   const Strategy strategy = found.unroll(0);
//
// All of them may use any reshard, tensor reuse and pending gradients.
#pragma once

#include <span>
#include <vector>

#include "baselines/axis_roles.h"
#include "baselines/subproblem.h"
#include "search/frontier_tracking.h"

namespace tensoropt {

enum class Baseline {
  kDataParallel,  // all axes split the batch, parameters are replicated
  kZero3,         // the same with parameters stored sharded
  kMegatron,      // inner axes split weights, outer axes the batch: any degree
  kMeshTensorFlow,  // every map from axes to names of dims
  kOptCnn,  // the fastest; memory is not looked at, no parameter is sharded
            // further than its operator uses it
  kToFu,    // everything is split on all axes; the least memory
};

// The frontier of one or of several searches together.
class BaselineResult {
 public:
  // By memory ascending, time descending; empty if there is no such strategy.
  std::span<const Point> points() const { return points_; }
  // Whether all searches were exact (SearchResult::exact).
  bool exact() const { return exact_; }
  // In the configs of the whole space.
  Strategy unroll(int point) const;
  // The same with the times that are told of its points.
  BaselineResult told(const LeastStepTime& time_s) const;

 private:
  friend class Baselines;
  struct Part {
    Subproblem subproblem;
    SearchResult result;
  };
  struct Origin {
    int part;
    int point;
  };

  void add(Part part);
  // What there is in it.
  void add_all(Subproblem subproblem, const SearchOptions& options);
  void keep_only(int point);
  bool beats(Point point) const;

  bool exact_ = true;
  std::vector<Point> points_;
  std::vector<Origin> origins_;
  std::vector<std::shared_ptr<const Part>> parts_;
};

class Baselines {
 public:
  // Keeps references. `problem` is that of the space.
  Baselines(const StrategySpace& space, const Problem& problem);

  const RoleMasks& roles() const { return roles_; }
  // epsilon of the options holds for the frontier of the baseline, at their
  // pick limits too; the memory limit is ignored.
  BaselineResult find(Baseline baseline, const SearchOptions& options);
  // The frontier of strategies that play these roles.
  BaselineResult play(const AxisRoles& roles, const SearchOptions& options);
  // That of a problem with these configs alone, of others its tables may be
  // without choices. The memory limit is ignored.
  static BaselineResult within(const Problem& problem,
                               const std::vector<ConfigMask>& allowed,
                               const SearchOptions& options);

 private:
  AxisRoles uniform(RoleKind kind) const;
  BaselineResult find_megatron(const SearchOptions& options);
  BaselineResult find_mesh_tensorflow(const SearchOptions& options);
  BaselineResult find_opt_cnn(const SearchOptions& options);
  std::vector<AxisRoles> maps() const;
  bool divides_somewhere(int name, std::int64_t parts) const;

  const StrategySpace& space_;
  const Problem as_used_problem_;  // parameters are stored as they are used
  RoleMasks roles_;
  SubproblemMaker whole_;
  SubproblemMaker as_used_;
};

}  // namespace tensoropt
