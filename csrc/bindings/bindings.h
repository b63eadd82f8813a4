// The parts of the Python module; each is bound in a file of its own.
#pragma once

#include <pybind11/pybind11.h>

namespace tensoropt {

class StrategySpace;

void bind_reshard(pybind11::module_& module);
void bind_graph(pybind11::module_& module);
void bind_rules(pybind11::module_& module);
// What a planner is made of, and how it searches.
void bind_settings(pybind11::module_& module);
void bind_planner(pybind11::module_& module);

// What csrc/space/explain.h says, as dicts.
pybind11::list explanation_records(const StrategySpace& space);

}  // namespace tensoropt
