// A strategy space as a search problem: what its edges cost, and the tables of
// nodes and edges.
//
//   const SpaceProblem costs(space);
//   costs.options_of(edge, source_config, target_config);
//   Problem problem = costs.build(num_threads);
//   SearchResult result = search(problem, search_options);
//   Strategy best = result.unroll(0);
//   best.config[edge.source];
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cost/edge_cost.h"
#include "problem/problem.h"
#include "space/space.h"

namespace tensoropt {

class SpaceProblem {
 public:
  // The space must outlive this object.
  explicit SpaceProblem(const StrategySpace& space) : space_(space) {}

  // The way the edge is crossed between two configs; none if forbidden.
  EdgeOptions options_of(const SpaceEdge& edge, int source_config,
                         int target_config) const;
  // Whether it may be crossed so, at whatever cost.
  bool allows(const SpaceEdge& edge, int source_config, int target_config,
              const EdgeChoice& choice) const;

  // All tables. Complexity: the sum over distinct edges of the products of
  // their ends' config counts.
  Problem build(int num_threads) const;

 private:
  struct EdgeKind;

  EdgeKind kind_of(const SpaceEdge& edge) const;
  EdgeOptions options_of(const SpaceEdge& edge, const EdgeKind& kind,
                         int source_config, int target_config) const;
  // None if the edge cannot be crossed between these configs.
  std::optional<EdgeSpec> spec_of(const SpaceEdge& edge, const EdgeKind& kind,
                                  int source_config, int target_config) const;
  std::vector<bool> followers(const SpaceEdge& edge, int source_config) const;
  std::shared_ptr<const EdgeTable> edge_table(const SpaceEdge& edge) const;

  const StrategySpace& space_;
};

}  // namespace tensoropt
