#include "describe/network_time.h"

#include <algorithm>

#include "common/check.h"
#include "space/space_problem.h"

namespace tensoropt {

namespace {

double edge_time_s(const StrategySpace& space, const SpaceProblem& costs,
                   const Strategy& strategy, int index) {
  const SpaceEdge& edge = space.edges()[index];
  const EdgeOptions options = costs.options_of(
      edge, strategy.config[edge.source], strategy.config[edge.target]);
  const auto all = options.all();
  const auto chosen =
      std::find_if(all.begin(), all.end(), [&](const EdgeOption& option) {
        return option.choice.tag() == strategy.edge_tag[index];
      });
  TO_CHECK(chosen != all.end(), "edge from '{}' to '{}' has no choice {}",
           space.nodes()[edge.source].name, space.nodes()[edge.target].name,
           strategy.edge_tag[index]);
  return chosen->time_s;
}

}  // namespace

double network_time_s(const StrategySpace& space, const Strategy& strategy,
                      const StepShape& shape) {
  space.check(strategy);
  const SpaceProblem costs(space, shape);
  const Projection step(shape, space.machine().device);
  double time_s = 0;
  for (std::size_t i = 0; i < space.nodes().size(); ++i) {
    time_s +=
        step.network_s(space.nodes()[i].configs->costs[strategy.config[i]]);
  }
  for (std::size_t i = 0; i < space.edges().size(); ++i) {
    time_s += edge_time_s(space, costs, strategy, static_cast<int>(i));
  }
  return time_s;
}

double compute_time_s(const StrategySpace& space, const Strategy& strategy,
                      const StepShape& shape) {
  space.check(strategy);
  const Projection step(shape, space.machine().device);
  double time_s = 0;
  for (std::size_t i = 0; i < space.nodes().size(); ++i) {
    const CostParts& cost = space.nodes()[i].configs->costs[strategy.config[i]];
    time_s += step.time_s(cost) - step.network_s(cost);
  }
  return time_s;
}

}  // namespace tensoropt
