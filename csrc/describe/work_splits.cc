#include "describe/work_splits.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "common/check.h"

namespace tensoropt {

namespace {

bool any(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
}

}  // namespace

std::string_view to_string(WorkSplit split) {
  constexpr std::array<std::string_view, 4> kNames = {"none", "batch",
                                                      "features", "positions"};
  return kNames[static_cast<std::size_t>(split)];
}

WorkSplits::WorkSplits(const StrategySpace& space)
    : space_(space),
      dims_(space),
      beside_weight_(space.model().dim_classes().bound(), false) {
  for (const Node& node : space.graph().nodes()) {
    if (node.kind != NodeKind::kOp) continue;
    const Rule& rule = space.rule(node.id);
    const std::vector<bool> in_weight = weight_factors(space, node);
    if (!any(in_weight)) continue;
    for (std::size_t f = 0; f < in_weight.size(); ++f) {
      const int factor = static_cast<int>(f);
      const int dims =
          space.model().dim_classes().of_factor(node, rule, factor);
      if (dims >= 0 && !in_weight[f]) beside_weight_[dims] = true;
    }
  }
}

std::vector<WorkSplit> WorkSplits::of(const SpaceNode& op,
                                      const SpaceConfig& config) const {
  TO_ASSERT(op.kind == SpaceNodeKind::kOp, "'{}' is not an operator", op.name);
  const Node& node = space_.graph().node(op.node);
  const std::vector<bool> in_weight = weight_factors(space_, node);
  std::vector<WorkSplit> result;
  for (const AxisUse use : config.uses) {
    result.push_back(use.is_factor()
                         ? by_factor(node, use.factor_index(), in_weight)
                         : WorkSplit::kNone);
  }
  return result;
}

WorkSplit WorkSplits::by_factor(const Node& node, int factor,
                                const std::vector<bool>& in_weight) const {
  const NamedDims::Dim dim = dims_.of_factor(node, factor);
  if (dim.name == NamedDims::kBatch) return WorkSplit::kBatch;
  if (in_weight[factor]) return WorkSplit::kFeatures;
  const int dims = space_.model().dim_classes().of_factor(
      node, space_.rule(node.id), factor);
  const bool beside = any(in_weight) || (dims >= 0 && beside_weight_[dims]);
  return dim.of_weight && !beside ? WorkSplit::kFeatures
                                  : WorkSplit::kPositions;
}

}  // namespace tensoropt
