// Explanations of strategy spaces as records.

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "space/explain.h"

namespace py = pybind11;

namespace tensoropt {

namespace {

py::dict record_of(const StrategySpace& space, const NodeExplanation& node) {
  const SpaceNode& space_node = space.nodes()[node.space_node];
  py::dict record;
  record["name"] = space_node.name;
  record["target"] = space_node.kind == SpaceNodeKind::kOp
                         ? space.graph().node(space_node.node).target
                     : space_node.kind == SpaceNodeKind::kRelay ? "relay"
                                                                : "parameter";
  record["rule"] = node.rule;
  record["num_configs"] = node.num_configs;
  record["num_without_budget"] = node.num_without_budget;
  record["num_in_any_order"] = node.num_in_any_order;
  record["max_runs"] = node.max_runs;
  py::list uneven;
  for (const UnevenSplit& split : node.uneven_splits) {
    uneven.append(
        py::make_tuple(split.factor, split.size, split.parts, split.equal));
  }
  record["uneven_splits"] = uneven;
  py::list exclusions;
  for (const Exclusion& exclusion : node.exclusions) {
    exclusions.append(py::make_tuple(std::string(to_string(exclusion.reason)),
                                     exclusion.factor, exclusion.size));
  }
  record["exclusions"] = exclusions;
  record["flops"] = node.flops;
  record["parts"] = node.parts;
  record["time_s"] = node.time_s;
  record["memory_bytes"] = node.memory_bytes;
  record["even_time_s"] = node.even_time_s;
  record["even_memory_bytes"] = node.even_memory_bytes;
  return record;
}

}  // namespace

py::list explanation_records(const StrategySpace& space) {
  py::list records;
  for (const NodeExplanation& node : explain(space)) {
    records.append(record_of(space, node));
  }
  return records;
}

}  // namespace tensoropt
