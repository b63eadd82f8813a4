#include "space/units.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "space/dim_classes.h"

namespace tensoropt {

namespace {

// What is known of the dims of a class.
struct DimsTogether {
  std::int64_t count = 0;  // of units: divides all sizes
  bool uneven = false;     // some operator can split them so
  bool single = false;     // entries stay single
};

class UnitFinder {
 public:
  UnitFinder(const Graph& graph, const RulesByNode& rules)
      : graph_(graph), classes_(graph, rules), found_(classes_.bound()) {
    for (const Node& node : graph.nodes()) {
      if (node.kind == NodeKind::kOp) add_factors(node, rules[node.id]);
    }
    for (const Value& value : graph.values()) {
      for (int dim = 0; dim < value.meta.rank(); ++dim) {
        DimsTogether& dims = found_[classes_.of(value.id, dim)];
        if (value.meta.shape[dim] == 0) dims.single = true;
        dims.count = std::gcd(dims.count, value.meta.shape[dim]);
      }
    }
  }

  // Dims of this value are not cut in units of more than one entry.
  void keep_single(const Value& value) {
    for (int dim = 0; dim < value.meta.rank(); ++dim) {
      DimsTogether& dims = found_[classes_.of(value.id, dim)];
      if (dims.count != value.meta.shape[dim]) dims.single = true;
    }
  }

  // The units of a value's dims; none if all are single entries.
  std::optional<std::vector<std::int64_t>> units_of(const Value& value,
                                                    int devices) const {
    std::vector<std::int64_t> units;
    for (int dim = 0; dim < value.meta.rank(); ++dim) {
      const DimsTogether& dims = found_[classes_.of(value.id, dim)];
      const bool in_units = dims.uneven && !dims.single &&
                            dims.count >= devices && dims.count % devices != 0;
      units.push_back(in_units ? value.meta.shape[dim] / dims.count : 1);
    }
    const bool single = std::all_of(units.begin(), units.end(),
                                    [](std::int64_t u) { return u == 1; });
    return single ? std::nullopt : std::optional(std::move(units));
  }

 private:
  void add_factors(const Node& node, const Rule& rule) {
    for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
      const Factor& factor = rule.factors[f];
      const int key = classes_.of_factor(node, rule, f);
      if (key >= 0 && factor.size > 1) {
        found_[key].count = std::gcd(found_[key].count, factor.size);
        found_[key].uneven |= factor.uneven;
      } else if (key >= 0 && binds_longer_dims(node, rule, f)) {
        found_[key].single = true;  // the sizes need have no divisor in common
      }
      for (const int member : factor.joint) {
        found_[classes_.of_factor(node, rule, member)].single = true;
      }
    }
  }

  // Whether dims of more entries than the factor has are bound to it, as where
  // an operator cannot split a dim.
  bool binds_longer_dims(const Node& node, const Rule& rule, int factor) const {
    const auto look = [&](const std::vector<TensorRule>& tensors,
                          const std::vector<ValueId>& values) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const Shape& shape = graph_.value(values[i]).meta.shape;
        for (std::size_t dim = 0; dim < tensors[i].dims.size(); ++dim) {
          if (tensors[i].dims[dim] == factor &&
              shape[dim] > rule.factors[factor].size) {
            return true;
          }
        }
      }
      return false;
    };
    return look(rule.operands, node.operands) ||
           look(rule.outputs, node.outputs);
  }

  const Graph& graph_;
  DimClasses classes_;
  std::vector<DimsTogether> found_;  // by class
};

}  // namespace

std::vector<NodeId> set_units(
    Graph& graph, const RulesByNode& rules, const Mesh& mesh,
    const std::function<bool(const Node&)>& keeps_single) {
  UnitFinder finder(graph, rules);
  for (const Node& node : graph.nodes()) {
    if (node.kind != NodeKind::kOp && keeps_single(node)) {
      finder.keep_single(graph.output(node, 0));
    }
  }
  std::vector<bool> changed(graph.nodes().size(), false);
  for (std::size_t id = 0; id < graph.values().size(); ++id) {
    const Value& value = graph.value(static_cast<ValueId>(id));
    auto units = finder.units_of(value, mesh.num_devices());
    if (!units) continue;
    changed[value.producer] = true;
    for (const Use& use : value.uses) changed[use.node] = true;
    graph.set_units(value.id, *std::move(units));
  }
  std::vector<NodeId> nodes;
  for (const Node& node : graph.nodes()) {
    if (changed[node.id]) nodes.push_back(node.id);
  }
  return nodes;
}

}  // namespace tensoropt
