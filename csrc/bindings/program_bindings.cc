// What one rank runs for one strategy.

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/ids.h"
#include "emit/rank_program.h"
#include "search_space/search_space.h"

namespace py = pybind11;

namespace tensoropt {

namespace {

void bind_reshards(py::module_& module) {
  using Self = const EmittedReshard&;
  py::class_<EmittedReshard>(module, "EmittedReshard",
                             "What an edge of the space stands for on a rank; "
                             "emit/rank_program.h.")
      .def_readonly("forward", &EmittedReshard::forward)
      .def_readonly("backward", &EmittedReshard::backward)
      .def_property_readonly("saved",
                             [](Self self) { return self.choice.saved; })
      .def_property_readonly("held", [](Self self) { return self.choice.held; })
      .def_property_readonly("summed",
                             [](Self self) { return self.choice.summed; })
      .def_readonly("source_saved", &EmittedReshard::source_saved)
      .def_property_readonly("is_bucketed", &EmittedReshard::is_bucketed)
      .def_property_readonly("gathered_dim", &EmittedReshard::gathered_dim)
      .def_readonly("value_bytes", &EmittedReshard::value_bytes)
      .def_readonly("casts", &EmittedReshard::casts)
      .def_property_readonly("dtype",
                             [](Self self) { return to_string(self.dtype); })
      .def_property_readonly("reduce_dtype", [](Self self) {
        return to_string(self.reduce_dtype);
      });
}

}  // namespace

void bind_programs(py::module_& module) {
  bind_reshards(module);
  py::class_<RankProgram>(module, "RankProgram",
                          "What one rank runs for one strategy.")
      .def(py::init([](const std::shared_ptr<SearchSpace>& self,
                       const Strategy& strategy, int rank) {
             return std::make_unique<RankProgram>(
                 self->space(), self->registry(), strategy, rank);
           }),
           py::arg("space"), py::arg("strategy"), py::arg("rank"),
           py::keep_alive<1, 2>())
      .def("reshard", &RankProgram::reshard, py::arg("edge"))
      .def(
          "gradient_layout",
          [](const RankProgram& self, SpaceEdgeId edge) {
            return self.gradient_layout(edge).to_string();
          },
          py::arg("edge"))
      .def("call", &RankProgram::call, py::arg("graph_node"))
      .def(
          "layout_of",
          [](const RankProgram& self, ValueId value) {
            return self.layout_of(value).to_string();
          },
          py::arg("value"));
}

}  // namespace tensoropt
