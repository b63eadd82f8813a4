// Graph construction: Python hands over plain records.

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/ids.h"
#include "bindings/literals.h"
#include "common/check.h"
#include "ir/graph.h"
#include "sharding/layout.h"

namespace py = pybind11;

namespace tensoropt {

namespace {

using PyMeta = std::pair<std::vector<std::int64_t>, std::string>;

// `owner` is what messages name.
TensorMeta meta_of(const PyMeta& meta, const std::string& owner) {
  constexpr std::size_t kMaxDims = Placement::kMaxDim + 1;
  TO_CHECK(meta.first.size() <= kMaxDims,
           "{} has {} dims; tensors have at most {}: join some of them", owner,
           meta.first.size(), kMaxDims);
  try {
    return {meta.first, parse_dtype(meta.second)};
  } catch (const UserError& error) {
    throw UserError(str_format("{}: {}", owner, error.what()));
  }
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
  for (const PyMeta& output : outputs) {
    metas.push_back(meta_of(
        output, str_format("what operator '{}' ({}) returns", name, target)));
  }
  const NodeId node =
      graph.add_op(std::move(name), std::move(target), std::move(named),
                   std::move(metas), differentiable);
  return graph.node(node).outputs;
}

}  // namespace

void bind_graph(py::module_& module) {
  py::class_<ValueRef>(module, "Ref", "A tensor argument: a value's id.")
      .def(py::init<ValueId>(), py::arg("id"));

  py::enum_<NodeKind>(module, "NodeKind")
      .value("INPUT", NodeKind::kInput)
      .value("PARAMETER", NodeKind::kParameter)
      .value("CONSTANT", NodeKind::kConstant)
      .value("OP", NodeKind::kOp)
      .value("OUTPUT", NodeKind::kOutput);

  py::class_<Graph, std::shared_ptr<Graph>>(
      module, "Graph", "The model as the core sees it, in execution order.")
      .def(py::init<>())
      .def(
          "add_source",
          [](Graph& graph, NodeKind kind, std::string name, const PyMeta& meta,
             bool trainable, std::vector<int> even_dims) {
            TensorMeta tensor = meta_of(meta, str_format("tensor '{}'", name));
            return graph.add_source(kind, std::move(name), std::move(tensor),
                                    trainable, std::move(even_dims));
          },
          py::arg("kind"), py::arg("name"), py::arg("meta"), py::kw_only(),
          py::arg("trainable") = true,
          py::arg("even_dims") = std::vector<int>{},
          "Adds an input, parameter or constant; returns its value id.")
      .def("add_op", &add_op, py::arg("name"), py::arg("target"),
           py::arg("arguments"), py::arg("outputs"), py::kw_only(),
           py::arg("differentiable") = true,
           "Adds an operator; returns the value ids of its outputs.")
      .def("set_outputs", &Graph::set_outputs, py::arg("values"))
      .def("num_nodes",
           [](const Graph& graph) { return graph.nodes().size(); });
}

}  // namespace tensoropt
