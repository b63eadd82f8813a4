// A strategy space as a search problem: what its edges cost in a step of some
// micro-batches, and the tables of nodes and edges. The graph of the space is
// that of one micro-batch. Its costs are in parts (cost/parts.h), which are the
// same for every step: several numbers of micro-batches, or of those in flight,
// share all that is worked out before they are projected.
//
//   const SpaceProblem costs(space, {.micro_batches = 4});
//   costs.options_of(edge, source_config, target_config);
//   Problem problem = costs.build(num_threads);
//   SearchResult result = search(problem, search_options);
//   Strategy best = result.unroll(0);
//   best.config[edge.source];
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cost/edge_cost.h"
#include "problem/problem.h"
#include "problem/propagation.h"
#include "space/space.h"

namespace tensoropt {

// The nodes of the problem are those of the space, in the same order.
inline Problem::NodeId problem_node(SpaceNodeId node) {
  return Problem::NodeId(int{node});
}
inline SpaceNodeId space_node(Problem::NodeId node) {
  return SpaceNodeId(int{node});
}

// What is asked for of a problem.
struct ProblemPart {
  // By node: tables of edges have no choices between other configs. None: all.
  std::vector<ConfigMask> allowed = {};
  // Reshards take no time but their overhead: theirs is most of what there is
  // to work out. The least memory of all strategies is the same.
  bool without_reshards = false;
};

class SpaceProblem {
 public:
  // The space must outlive this object.
  explicit SpaceProblem(const StrategySpace& space, const StepShape& shape = {})
      : space_(space), step_(shape, space.machine().device) {}

  // The way the edge is crossed between two configs; none if forbidden.
  EdgeOptions options_of(const SpaceEdge& edge, int source_config,
                         int target_config) const;
  // Whether it may be crossed so, at whatever cost.
  bool allows(const SpaceEdge& edge, int source_config, int target_config,
              const EdgeChoice& choice) const;

  // All tables. Complexity: the sum over distinct edges of the products of
  // their ends' config counts, of those that are asked for.
  Problem build(int num_threads, const ProblemPart& part = {}) const;

  // The same for each of several step shapes. Takes less than building one by
  // one: the ways across edges are worked out once.
  std::vector<Problem> build_all(std::span<const StepShape> shapes,
                                 int num_threads) const;

 private:
  struct EdgeKind;
  struct Cells;

  EdgeKind kind_of(const SpaceEdge& edge) const;
  // None if the edge cannot be crossed between these configs.
  std::optional<EdgeWays> ways_of(const SpaceEdge& edge, const EdgeKind& kind,
                                  int source_config, int target_config) const;
  // None if the edge cannot be crossed between these configs.
  std::optional<EdgeSpec> spec_of(const SpaceEdge& edge, const EdgeKind& kind,
                                  int source_config, int target_config,
                                  bool lone_entry) const;
  bool has_lone_entry(const EdgeKind& kind, const Port& to) const;
  std::vector<bool> followers(const SpaceEdge& edge, int source_config) const;
  static Cells cells_of(const SpaceEdge& edge, const ProblemPart& part);
  std::vector<std::shared_ptr<const EdgeTable>> edge_tables(
      const SpaceEdge& edge, const Cells& cells,
      std::span<const Projection> steps) const;
  void add_nodes(Problem& problem, const Projection& step) const;
  void add_edges(std::vector<Problem>& problems,
                 std::span<const Projection> steps, const ProblemPart& part,
                 int num_threads) const;

  const StrategySpace& space_;
  const Projection step_;
};

}  // namespace tensoropt
