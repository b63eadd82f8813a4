// The strategies of one model on one mesh, and everything that they refer to.
//
//   SearchSpace space(graph, registry, {.cluster = cluster, .mesh = mesh});
//   SearchResult found = space.search(options, {});
//   Strategy strategy = found.unroll(0);
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "baselines/baselines.h"
#include "cost/op_profile.h"
#include "describe/host_time.h"
#include "describe/strategy_names.h"
#include "search/frontier_tracking.h"
#include "search/supporting_lines.h"
#include "space/space.h"
#include "space/space_problem.h"

namespace tensoropt {

// The machine that a model runs on, and how it runs there.
struct SpaceSetup {
  Cluster cluster;
  Mesh mesh;
  SpaceOptions space;
  CollectiveTable collectives;      // measured ones
  std::vector<OpSample> operators;  // measured ones
  RuntimeOverheads overheads;
  StepShape step = {};  // the graph is that of one of its micro-batches
};

// What is made from one place of a graph up to another one, with so many
// micro-batches in flight.
struct SpacePart {
  int first = 0;
  int last = 0;
  int in_flight = 1;
};

// Owns everything that a strategy space refers to. May be used by several
// threads: what is computed when it is first asked for is computed once. Rules
// may call Python, so the caller must not hold the interpreter's lock then.
class SearchSpace {
 public:
  SearchSpace(std::shared_ptr<const Graph> graph,
              std::shared_ptr<const Registry> registry, SpaceSetup setup);
  SearchSpace(const SearchSpace&) = delete;
  SearchSpace& operator=(const SearchSpace&) = delete;

  const StrategySpace& space() const { return space_; }
  const Registry& registry() const { return *registry_; }
  const Mesh& mesh() const { return setup_.mesh; }
  const StepShape& step() const { return setup_.step; }
  const OpProfile& operators() const { return operators_; }

  const StrategyNames& names();

  // From now on there are only strategies with the configs of each node that
  // its mask allows. Once, before anything is asked for.
  void restrict_to(std::vector<ConfigMask> allowed);

  const Problem& problem(int num_threads);

  // A node none of whose configs, of those that these masks allow of the whole
  // space, can be combined with its neighbours'; none if none is found.
  SpaceNodeId blocked_node(const std::vector<ConfigMask>& allowed);

  // Restricted to configs that a mask per node allows, if there are masks. With
  // times as they are told.
  SearchResult search(const SearchOptions& options,
                      const std::vector<ConfigMask>& allowed);

  // The least bytes of any strategy, of no more than a search says, but for
  // rounding. Takes less than that.
  double least_memory(SearchOptions options);

  // The same graph and costs with other numbers of micro-batches in flight:
  // tables of several numbers are built together, which takes less than one by
  // one. Masks of restrict_to do not apply.
  void build_in_flight(const std::vector<int>& numbers, int num_threads);
  // Of a number whose tables were built.
  SearchResult search_in_flight(int number, const SearchOptions& options);
  // Whether the parts of a model that is cut somewhere may together improve on
  // `options.others` (search/improvement.h), with a number in flight of its own
  // for each node of the graph. Parameters of several uses cost their memory;
  // their edges cost nothing, as each part may have a copy for itself.
  bool may_improve_in_flights(const IndexedVector<NodeId, int>& numbers,
                              const SearchOptions& options);
  // The least that strategies of parts cost. Nodes of the graph have places;
  // a part has the operators at its places, and the sources that these use.
  // What joins it to the rest costs nothing.
  std::vector<SupportingLines> least_of_parts(
      const IndexedVector<NodeId, int>& places,
      const std::vector<SpacePart>& parts,
      const SupportingLinesOptions& options);

  Baselines& baselines(int num_threads);
  // The frontier of strategies that play these roles, with times as they are
  // told; the memory limit is ignored. Where nothing else was asked for before,
  // nothing is worked out of configs that do not play them.
  BaselineResult play(const AxisRoles& roles, const SearchOptions& options);

  // Times as they are told: the host may need longer for a step than the device
  // (describe/host_time.h).
  const HostTime& host() const { return host_; }
  BaselineResult told(const BaselineResult& result) const;

 private:
  // All of the problem if that is made already.
  Problem problem_of(const ProblemPart& part, int num_threads);
  const Problem& problem_in_flight(int number);
  NodeId graph_node_of(const SpaceNode& node) const;
  // Whether it is the relay of a source with several uses.
  bool is_shared_source(SpaceNodeId node) const;
  std::vector<bool> nodes_of(const IndexedVector<NodeId, int>& places,
                             const SpacePart& part) const;

  const std::shared_ptr<const Graph> graph_;
  const std::shared_ptr<const Registry> registry_;
  const SpaceSetup setup_;
  const AnalyticCollectives analytic_;
  const MeasuredCollectives measured_;
  const DelayedCollectives collectives_;
  const OpProfile operators_;
  const StrategySpace space_;
  const HostTime host_;
  std::mutex problem_mutex_;
  bool is_asked_ = false;            // for a part of it or for all
  std::vector<ConfigMask> allowed_;  // by node; none: all configs
  Problem whole_;
  std::optional<Problem> problem_;
  std::map<int, Problem> in_flight_;
  std::mutex names_mutex_;
  std::optional<StrategyNames> names_;
  std::mutex baselines_mutex_;
  std::optional<Baselines> baselines_;
};

}  // namespace tensoropt
