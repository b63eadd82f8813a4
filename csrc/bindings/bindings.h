// The parts of the Python module; each is bound in a file of its own.
#pragma once

#include <pybind11/pybind11.h>

namespace tensoropt {

void bind_reshard(pybind11::module_& module);
void bind_graph(pybind11::module_& module);
void bind_planner(pybind11::module_& module);

}  // namespace tensoropt
