// tensoropt_torch._C: the C++ core for Python.

#include <pybind11/pybind11.h>

#include "bindings/bindings.h"
#include "common/check.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "C++ core of TensorOpt: graphs, costs, search, emission.";
  pybind11::register_exception<tensoropt::UserError>(
      module, "UserError",
      pybind11::module_::import("tensoropt_torch.errors")
          .attr("TensorOptError"));
  pybind11::register_exception<tensoropt::InternalError>(
      module, "InternalError", PyExc_RuntimeError);
  tensoropt::bind_reshard(module);
  tensoropt::bind_graph(module);
  tensoropt::bind_rules(module);
  tensoropt::bind_settings(module);
  tensoropt::bind_planner(module);
}
