#include "describe/host_time.h"

#include <algorithm>

#include "cost/edge_cost.h"

namespace tensoropt {

HostTime::HostTime(const StrategySpace& space, const StepShape& shape)
    : space_(space),
      micro_batches_(shape.micro_batches),
      launch_s_(space.machine().device.host_launch_s) {}

double HostTime::of(const Strategy& strategy) const {
  space_.check(strategy);
  return launch_s_ * (of_operators(&strategy) + of_reshards(strategy));
}

double HostTime::least() const { return launch_s_ * of_operators(nullptr); }

double HostTime::of_operators(const Strategy* strategy) const {
  double launches = 0;
  for (std::size_t i = 0; i < space_.nodes().size(); ++i) {
    const SpaceNode& at = space_.nodes()[i];
    if (at.kind != SpaceNodeKind::kOp) continue;
    const Rule& rule = space_.rule(at.node);
    // A view is called as others are, unless a compiler has made the calls.
    double own = std::max(1.0, rule.launches);
    if (space_.options().compiled) own = rule.view ? 0 : rule.launches;
    const bool backward =
        space_.graph().has_backward(space_.graph().node(at.node));
    const bool again =
        strategy != nullptr &&
        at.configs->configs[strategy->config[i]].saved == Saved::kRemade;
    launches += own * (1 + (backward ? 1 : 0) + (again ? 1 : 0));
  }
  return micro_batches_ * launches;
}

double HostTime::of_reshards(const Strategy& strategy) const {
  double launches = 0;
  for (std::size_t i = 0; i < space_.edges().size(); ++i) {
    const SpaceEdge& edge = space_.edges()[i];
    const Port& from = space_.source_port(edge, strategy.config[edge.source]);
    const Port& to = space_.target_port(edge, strategy.config[edge.target]);
    const EdgeChoice choice = EdgeChoice::of(strategy.edge_tag[i]);
    if (from.value != to.value) {
      launches += choice.held ? 1 : micro_batches_;
      if (choice.saved == Saved::kRemade) launches += micro_batches_;
    }
    if (space_.graph().value(edge.value).requires_grad &&
        from.gradient != to.gradient) {
      launches += choice.summed ? 1 : micro_batches_;
    }
  }
  return launches;
}

}  // namespace tensoropt
