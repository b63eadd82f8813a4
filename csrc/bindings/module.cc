// tensoropt_torch._C: the C++ core for Python.

#include <pybind11/pybind11.h>
#include <torch/csrc/api/include/torch/version.h>

#include <string>

#include "bindings/bindings.h"
#include "common/check.h"

namespace {

// The exception type must outlive all modules that may raise it.
pybind11::object& tensoropt_error() {
  PYBIND11_CONSTINIT static pybind11::gil_safe_call_once_and_store<
      pybind11::object>
      storage;
  return storage
      .call_once_and_store_result([] {
        return pybind11::module_::import("tensoropt_torch.errors")
            .attr("TensorOptError");
      })
      .get_stored();
}

// Kinds of numbers, for type checkers.
void add_id_types(pybind11::module_& module) {
  const pybind11::object new_type =
      pybind11::module_::import("typing").attr("NewType");
  const pybind11::handle number(reinterpret_cast<PyObject*>(&PyLong_Type));
  for (const char* name : {"NodeId", "ValueId", "SpaceNodeId", "SpaceEdgeId"}) {
    pybind11::object type = new_type(name, number);
    type.attr("__module__") = module.attr("__name__");
    module.attr(name) = type;
  }
}

// Of the headers that libtensoropt_ops is compiled with as well.
std::string torch_release() {
  return std::to_string(TORCH_VERSION_MAJOR) + "." +
         std::to_string(TORCH_VERSION_MINOR);
}

void raise_user_errors_as_tensoropt_error() {
  pybind11::register_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const tensoropt::UserError& error) {
      pybind11::set_error(tensoropt_error(), error.what());
    }
  });
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "C++ core of TensorOpt: graphs, costs, search, emission.";
  raise_user_errors_as_tensoropt_error();
  pybind11::register_exception<tensoropt::InternalError>(
      module, "InternalError", PyExc_RuntimeError);
  add_id_types(module);
  module.def("torch_release", &torch_release,
             "The minor release of PyTorch that this was built for: '2.13'.");
  tensoropt::bind_reshard(module);
  tensoropt::bind_graph(module);
  tensoropt::bind_rules(module);
  tensoropt::bind_rows(module);
  tensoropt::bind_calls(module);
  tensoropt::bind_settings(module);
  tensoropt::bind_search_space(module);
  tensoropt::bind_programs(module);
  tensoropt::bind_pipelines(module);
}
