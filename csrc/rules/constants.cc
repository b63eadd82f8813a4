// Operators without tensor operands: every device makes the whole constant.

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

Rule constant_rule(const Graph& graph, const Node& node) {
  return RuleBuilder(graph, node).take();
}

}  // namespace

void register_constants(Registry& registry) {
  for (const char* target :
       {"aten.arange.default", "aten.arange.start", "aten.arange.start_step",
        "aten.zeros.default", "aten.ones.default", "aten.full.default",
        "aten.empty.memory_format", "aten.scalar_tensor.default",
        "aten.eye.default", "aten.linspace.default",
        "aten.lift_fresh_copy.default"}) {
    registry.add(target, {constant_rule, {}});
  }
}

}  // namespace tensoropt
