// The space of strategies of a model on a mesh: its nodes and edges, with their
// configs and reshards. What they cost as a search problem is in
// space_problem.h, what is told of them in describe/.
//
//   StrategySpace space(graph, builtin_registry(), machine, options);
//   Problem problem = SpaceProblem(space).build(num_threads);
//   SearchResult result = search(problem, search_options);
//   Strategy best = result.unroll(0);
//   const SpaceEdge& edge = space.edges()[3];
//   space.source_port(edge, best.config[edge.source]);   // layouts there
//
// Space nodes are the operators and sources of the graph, its output, and one
// relay for every value with several consumers that is not an input
// or constant. A relay is an identity whose
// config says in which layout the consumers find the value, whether its
// gradient may stay Partial until all of them have added to it, and whether it
// is kept for backward; that of an operator says whether it runs again in
// backward (recomputation.h). So every cost lies on one node or one edge, which
// makes the search exact.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "problem/strategy.h"
#include "reshard/shared_resharder.h"
#include "space/config_lists.h"
#include "space/model.h"

namespace tensoropt {

using SpaceNodeId = Id<struct SpaceNodeTag>;
using SpaceEdgeId = Id<struct SpaceEdgeTag>;

enum class SpaceNodeKind { kSource, kOp, kRelay, kOutput };

struct SpaceNode {
  SpaceNodeKind kind = SpaceNodeKind::kOp;
  NodeId node;       // of the graph; none for a relay
  ValueId value;     // of a relay
  std::string name;  // one that repeats has a number, as in "scale (2)"
  const ConfigList* configs = nullptr;
};

struct SpaceEdge {
  SpaceNodeId source;
  SpaceNodeId target;
  int source_port = 0;
  int target_port = 0;
  ValueId value;
  bool follows = false;  // the target takes the layout it gets
  // Which of both ends may run again.
  AllowedPairs pairs = AllowedPairs::all();
};

class StrategySpace {
 public:
  // Registry and machine must outlive the space.
  StrategySpace(const Graph& graph, const Registry& registry,
                const Machine& machine, const SpaceOptions& options);
  StrategySpace(const StrategySpace&) = delete;
  StrategySpace& operator=(const StrategySpace&) = delete;

  const SpaceModel& model() const { return model_; }
  const Graph& graph() const { return model_.graph(); }
  const Machine& machine() const { return model_.machine(); }
  const SpaceOptions& options() const { return model_.options(); }
  const Rule& rule(NodeId node) const { return model_.rule(node); }

  const std::vector<SpaceNode>& nodes() const { return nodes_; }
  const std::vector<SpaceEdge>& edges() const { return edges_; }
  // The space node of a graph node; none if it has none.
  SpaceNodeId node_of(NodeId node) const { return node_of_[node]; }

  // The reshards of tensors of this shape and type. Thread-safe.
  const TensorResharder& resharder(const TensorMeta& meta) const;

  // The reshards of the value that an edge carries, and of the gradient that
  // comes back over it.
  SharedResharder value_resharder(const SpaceEdge& edge) const;
  SharedResharder gradient_resharder(const SpaceEdge& edge) const;

  // Whether the edge leaves a cast that copies a parameter. The cast then is
  // part of its reshard: a copy kept before that is the input of the cast.
  bool casts(const SpaceEdge& edge) const;
  // Whether nothing but a cast is between a parameter and the edge.
  bool leaves_parameter(const SpaceEdge& edge) const;

  const Port& source_port(const SpaceEdge& edge, int config) const {
    return nodes_[edge.source]
        .configs->configs[config]
        .outputs[edge.source_port];
  }
  const Port& target_port(const SpaceEdge& edge, int config) const {
    return nodes_[edge.target]
        .configs->configs[config]
        .inputs[edge.target_port];
  }

  // Throws UserError, naming what is wrong, if the strategy is of another
  // space.
  void check(const Strategy& strategy) const;

  // Whether the space has every config: max_configs left none out.
  bool complete() const { return lists_.complete(); }

 private:
  // The shape in units, and the bytes of a unit.
  using TensorKind = std::pair<Shape, std::int64_t>;

  void add_nodes();
  void add_edges();
  void add_resharders();
  void add_buckets();
  SharedResharder shared_resharder(
      const SpaceEdge& edge, const TensorMeta& meta,
      const std::map<TensorKind, MoveCosts>& in_bucket) const;

  SpaceModel model_;
  ConfigLists lists_;
  std::vector<SpaceNode> nodes_;
  std::vector<SpaceEdge> edges_;
  IndexedVector<NodeId, SpaceNodeId> node_of_;
  IndexedVector<ValueId, SpaceNodeId> relay_of_;
  // Tensors whose layouts have the same paths share one.
  std::map<TensorKind, std::shared_ptr<const TensorResharder>> resharders_;
  // Of parameters and of their gradients, where they may share a bucket.
  std::map<TensorKind, MoveCosts> gathered_together_;
  std::map<TensorKind, MoveCosts> summed_together_;
};

}  // namespace tensoropt
