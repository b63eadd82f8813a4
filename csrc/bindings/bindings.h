// The parts of the Python module; each is bound in a file of its own.
#pragma once

#include <pybind11/pybind11.h>

namespace tensoropt {

void bind_reshard(pybind11::module_& module);
void bind_graph(pybind11::module_& module);
void bind_rules(pybind11::module_& module);
// What a search space is made of, and how it is searched.
void bind_settings(pybind11::module_& module);
void bind_search_space(pybind11::module_& module);
// What is told of a space and of strategies.
void bind_rows(pybind11::module_& module);
void bind_calls(pybind11::module_& module);
void bind_programs(pybind11::module_& module);
void bind_pipelines(pybind11::module_& module);

}  // namespace tensoropt
