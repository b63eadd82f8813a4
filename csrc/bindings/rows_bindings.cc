// What is told of strategy spaces and strategies: read-only records.

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/ids.h"
#include "describe/descriptions.h"

namespace py = pybind11;

namespace tensoropt {

namespace {

void bind_saved(py::module_& module) {
  py::enum_<Saved>(module, "Saved",
                   "What becomes of a value that backward needs; cost/saved.h.")
      .value("NOTHING", Saved::kNothing)
      .value("REMADE", Saved::kRemade)
      .value("KEPT", Saved::kKept)
      .value("KEPT_TWICE", Saved::kKeptTwice)
      .def_property_readonly("edge_word", &edge_word,
                             "Which copies stay in memory on an edge.");
}

void bind_nodes(py::module_& module) {
  py::class_<NodeRow>(module, "NodeRow",
                      "A node of a strategy space; describe/descriptions.h.")
      .def_readonly("name", &NodeRow::name)
      .def_readonly("target", &NodeRow::target)
      .def_readonly("graph_node", &NodeRow::graph_node)
      .def_readonly("configs", &NodeRow::configs)
      .def_readonly("splits", &NodeRow::splits)
      .def_readonly("saved", &NodeRow::saved);

  py::class_<PortLayouts>(module, "PortLayouts",
                          "Layouts of a value and of its gradient.")
      .def_readonly("value", &PortLayouts::value)
      .def_readonly("gradient", &PortLayouts::gradient);

  py::class_<ConfigPorts>(module, "ConfigPorts",
                          "What a config takes and gives.")
      .def_readonly("inputs", &ConfigPorts::inputs)
      .def_readonly("outputs", &ConfigPorts::outputs);

  py::class_<NodeUnits>(module, "NodeUnits",
                        "How many neighbouring entries of each dim are never "
                        "parted; empty: single ones.")
      .def_readonly("operands", &NodeUnits::operands)
      .def_readonly("outputs", &NodeUnits::outputs);

  py::class_<OutputRow>(module, "OutputRow",
                        "In which dim an output has the rows of the batch "
                        "(-1: in none), and whether it depends on them.")
      .def_readonly("dim", &OutputRow::dim)
      .def_readonly("depends", &OutputRow::depends);
}

void bind_edges(py::module_& module) {
  py::class_<EdgeEnd>(module, "EdgeEnd", "Where the value of an edge goes.")
      .def_readonly("value", &EdgeEnd::value)
      .def_readonly("graph_node", &EdgeEnd::graph_node)
      .def_readonly("operand", &EdgeEnd::operand);

  py::class_<EdgeRow>(module, "EdgeRow",
                      "What happens to a value on the way to a consumer.")
      .def_readonly("source", &EdgeRow::source)
      .def_readonly("target", &EdgeRow::target)
      .def_readonly("value", &EdgeRow::value)
      .def_readonly("layout_from", &EdgeRow::layout_from)
      .def_readonly("layout_to", &EdgeRow::layout_to)
      .def_readonly("gradient_from", &EdgeRow::gradient_from)
      .def_readonly("gradient_to", &EdgeRow::gradient_to)
      .def_readonly("saved", &EdgeRow::saved)
      .def_readonly("held", &EdgeRow::held)
      .def_readonly("summed", &EdgeRow::summed);
}

void bind_figures(py::module_& module) {
  py::class_<WorkRow>(module, "WorkRow",
                      "An operator's FLOPs, and what splits them by mesh axis.")
      .def_readonly("name", &WorkRow::name)
      .def_readonly("flops", &WorkRow::flops)
      .def_readonly("splits", &WorkRow::splits);

  py::class_<EstimateRow>(module, "EstimateRow",
                          "The time of an operator, and where that is from.")
      .def_readonly("node", &EstimateRow::node)
      .def_readonly("name", &EstimateRow::name)
      .def_readonly("key", &EstimateRow::key)
      .def_readonly("family", &EstimateRow::family)
      .def_readonly("source", &EstimateRow::source)
      .def_readonly("time_s", &EstimateRow::time_s)
      .def_readonly("again_s", &EstimateRow::again_s)
      .def_readonly("error", &EstimateRow::error);
}

void bind_explanations(py::module_& module) {
  py::class_<UnevenSplit>(module, "UnevenSplit",
                          "A factor that is not cut into so many parts.")
      .def_readonly("factor", &UnevenSplit::factor)
      .def_readonly("size", &UnevenSplit::size)
      .def_readonly("parts", &UnevenSplit::parts)
      .def_readonly("equal", &UnevenSplit::equal);

  py::class_<Exclusion>(module, "Exclusion", "A factor that is not split.")
      .def_property_readonly(
          "reason",
          [](const Exclusion& self) { return to_string(self.reason); })
      .def_readonly("factor", &Exclusion::factor);

  using Self = const ExplanationRow&;
  py::class_<ExplanationRow>(module, "ExplanationRow",
                             "Why a node has its configs; describe/explain.h.")
      .def_readonly("name", &ExplanationRow::name)
      .def_readonly("target", &ExplanationRow::target)
      .def_property_readonly("rule", [](Self self) { return self.found.rule; })
      .def_property_readonly("num_configs",
                             [](Self self) { return self.found.num_configs; })
      .def_property_readonly(
          "num_without_budget",
          [](Self self) { return self.found.num_without_budget; })
      .def_property_readonly(
          "num_in_any_order",
          [](Self self) { return self.found.num_in_any_order; })
      .def_property_readonly("max_runs",
                             [](Self self) { return self.found.max_runs; })
      .def_property_readonly("uneven_splits",
                             [](Self self) { return self.found.uneven_splits; })
      .def_property_readonly("exclusions",
                             [](Self self) { return self.found.exclusions; })
      .def_property_readonly("flops",
                             [](Self self) { return self.found.flops; })
      .def_property_readonly("parts",
                             [](Self self) { return self.found.parts; })
      .def_property_readonly("time_s",
                             [](Self self) { return self.found.time_s; })
      .def_property_readonly("memory_bytes",
                             [](Self self) { return self.found.memory_bytes; })
      .def_property_readonly("even_time_s",
                             [](Self self) { return self.found.even_time_s; })
      .def_property_readonly("even_memory_bytes", [](Self self) {
        return self.found.even_memory_bytes;
      });
}

}  // namespace

void bind_rows(py::module_& module) {
  bind_saved(module);
  bind_nodes(module);
  bind_edges(module);
  bind_figures(module);
  bind_explanations(module);
}

}  // namespace tensoropt
