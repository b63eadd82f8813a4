// Graph construction: Python hands over plain records.

#include <pybind11/stl.h>

#include <optional>

#include "bindings/bindings.h"
#include "ir/graph.h"
#include "rules/registry.h"

namespace py = pybind11;

namespace tensoropt {

namespace {

using PyMeta = std::pair<std::vector<std::int64_t>, std::string>;

TensorMeta meta_of(const PyMeta& meta) {
  return {meta.first, parse_dtype(meta.second)};
}

// Nothing if the list has no Ref; None is a hole.
std::optional<std::vector<ValueRef>> refs_of(const py::list& list) {
  std::vector<ValueRef> refs;
  bool any = false;
  for (const py::handle item : list) {
    if (!item.is_none() && !py::isinstance<ValueRef>(item)) return {};
    any = any || !item.is_none();
    refs.push_back(item.is_none() ? ValueRef{} : item.cast<ValueRef>());
  }
  if (!any) return {};
  return refs;
}

// None, bool, int, float, str, lists of numbers; Ref; lists of Refs and None.
Argument argument_of(const py::handle& object) {
  if (py::isinstance<ValueRef>(object)) return object.cast<ValueRef>();
  if (object.is_none()) return Literal{};
  if (py::isinstance<py::bool_>(object)) return Literal{object.cast<bool>()};
  if (py::isinstance<py::int_>(object)) {
    return Literal{object.cast<std::int64_t>()};
  }
  if (py::isinstance<py::float_>(object)) {
    return Literal{object.cast<double>()};
  }
  if (py::isinstance<py::str>(object)) {
    return Literal{object.cast<std::string>()};
  }
  const auto list = object.cast<py::list>();
  if (auto refs = refs_of(list)) return *std::move(refs);
  for (const py::handle item : list) {
    if (py::isinstance<py::float_>(item)) {
      return Literal{object.cast<std::vector<double>>()};
    }
  }
  return Literal{object.cast<std::vector<std::int64_t>>()};
}

std::vector<ValueId> add_op(
    Graph& graph, std::string name, std::string target,
    const std::vector<std::pair<std::string, py::object>>& arguments,
    const std::vector<PyMeta>& outputs, bool differentiable) {
  std::vector<NamedArgument> named;
  for (const auto& [argument, object] : arguments) {
    named.push_back({argument, argument_of(object)});
  }
  std::vector<TensorMeta> metas;
  for (const PyMeta& output : outputs) metas.push_back(meta_of(output));
  const NodeId node =
      graph.add_op(std::move(name), std::move(target), std::move(named),
                   std::move(metas), differentiable);
  return graph.node(node).outputs;
}

}  // namespace

void bind_graph(py::module_& module) {
  py::class_<ValueRef>(module, "Ref", "A tensor argument: a value's id.")
      .def(py::init<ValueId>(), py::arg("id"))
      .def_readonly("id", &ValueRef::id);

  py::enum_<NodeKind>(module, "NodeKind")
      .value("INPUT", NodeKind::kInput)
      .value("PARAMETER", NodeKind::kParameter)
      .value("CONSTANT", NodeKind::kConstant)
      .value("OP", NodeKind::kOp)
      .value("OUTPUT", NodeKind::kOutput);

  py::class_<Graph, std::shared_ptr<Graph>>(
      module, "Graph", "The model as the planner sees it, in execution order.")
      .def(py::init<>())
      .def(
          "add_source",
          [](Graph& graph, NodeKind kind, std::string name, const PyMeta& meta,
             bool trainable) {
            return graph.add_source(kind, std::move(name), meta_of(meta),
                                    trainable);
          },
          py::arg("kind"), py::arg("name"), py::arg("meta"),
          py::arg("trainable") = true,
          "Adds an input, parameter or constant; returns its value id.")
      .def("add_op", &add_op, py::arg("name"), py::arg("target"),
           py::arg("arguments"), py::arg("outputs"),
           py::arg("differentiable") = true,
           "Adds an operator; returns the value ids of its outputs.")
      .def("set_outputs", &Graph::set_outputs, py::arg("values"))
      .def("num_nodes",
           [](const Graph& graph) { return graph.nodes().size(); });

  module.def(
      "rule_targets", [] { return builtin_registry().targets(); },
      "The operators that have a rule.");
}

}  // namespace tensoropt
