// Pipelines composed of frontiers of their stages.

#include <pybind11/stl.h>

#include <string>
#include <utility>

#include "bindings/bindings.h"
#include "common/check.h"
#include "pipeline/composition.h"
#include "pipeline/stage_limits.h"
#include "pipeline/step_time.h"

namespace py = pybind11;

namespace tensoropt {

namespace {

PipelineSchedule parse_schedule(const std::string& name) {
  TO_CHECK(name == "1f1b" || name == "gpipe",
           "schedule = '{}' has no closed form; it may be 1f1b or gpipe", name);
  return name == "gpipe" ? PipelineSchedule::kGpipe
                         : PipelineSchedule::kOneForwardOneBackward;
}

void bind_choices(py::module_& module) {
  py::class_<StageChoice>(module, "StageChoice",
                          "What a stage may be: what lies between two cuts.")
      .def(py::init([](int stage, int first_cut, int last_cut, int first_layout,
                       int last_layout, double transfer_s,
                       const std::vector<std::pair<double, double>>& points) {
             StageChoice choice{.stage = stage,
                                .first_cut = first_cut,
                                .last_cut = last_cut,
                                .first_layout = first_layout,
                                .last_layout = last_layout,
                                .transfer_seconds = transfer_s,
                                .points = {}};
             for (const auto& [memory, time] : points) {
               choice.points.push_back({memory, time});
             }
             return choice;
           }),
           py::kw_only(), py::arg("stage"), py::arg("first_cut"),
           py::arg("last_cut"), py::arg("first_layout") = 0,
           py::arg("last_layout") = 0, py::arg("transfer_s") = 0.0,
           py::arg("points"),
           "points: (bytes, seconds of a step) by ascending bytes; transfer_s: "
           "of one micro-batch at the last cut, and of its gradients.");
}

void bind_shape(py::module_& module) {
  static const PipelineShape defaults;
  py::class_<PipelineShape>(module, "PipelineShape")
      .def(py::init([](int stages, int micro_batches, int end,
                       const std::string& schedule, double forward_share,
                       double memory_step, std::vector<double> pick_limits) {
             return PipelineShape{.stages = stages,
                                  .micro_batches = micro_batches,
                                  .schedule = parse_schedule(schedule),
                                  .end = end,
                                  .forward_share = forward_share,
                                  .memory_step = memory_step,
                                  .pick_limits = std::move(pick_limits)};
           }),
           py::kw_only(), py::arg("stages"), py::arg("micro_batches"),
           py::arg("end"), py::arg("schedule") = "1f1b",
           py::arg("forward_share") = defaults.forward_share,
           py::arg("memory_step") = defaults.memory_step,
           py::arg("pick_limits") = defaults.pick_limits,
           "end: the cut where the model ends; memory_step: pipelines within "
           "this share of memory stand for each other; pick_limits: bytes at "
           "which "
           "the result will be picked from.");
}

void bind_composition(py::module_& module) {
  py::class_<Pipeline::Stage>(module, "ComposedStage")
      .def_readonly("choice", &Pipeline::Stage::choice,
                    "Its number among the choices.")
      .def_readonly("point", &Pipeline::Stage::point,
                    "The number of its point.");
  py::class_<Pipeline>(module, "ComposedPipeline")
      .def_property_readonly(
          "memory_bytes",
          [](const Pipeline& pipeline) { return pipeline.cost.memory; },
          "Of the stage that needs most.")
      .def_property_readonly(
          "time_s", [](const Pipeline& pipeline) { return pipeline.cost.time; })
      .def_readonly("stages", &Pipeline::stages);
  module.def("compose_pipelines", &compose, py::arg("choices"),
             py::arg("shape"), py::call_guard<py::gil_scoped_release>(),
             "The frontier of pipelines; pipeline/composition.h.");
  module.def(
      "longest_useful",
      [](const std::vector<StageChoice>& least, const PipelineShape& shape,
         const std::vector<std::pair<double, double>>& known) {
        std::vector<Point> points;
        for (const auto& [memory, time] : known) {
          points.push_back({memory, time});
        }
        return longest_useful(least, shape, points);
      },
      py::arg("least"), py::arg("shape"), py::arg("known"),
      py::call_guard<py::gil_scoped_release>(),
      "By choice: how long it may take with less memory than all known "
      "strategies, and with at least that of each; pipeline/stage_limits.h.");
}

void bind_step_time(py::module_& module) {
  py::class_<StageTime>(module, "StageTime", "Seconds of one micro-batch.")
      .def(
          py::init([](double forward_s, double backward_s, double transfers_s) {
            return StageTime{forward_s, backward_s, transfers_s};
          }),
          py::arg("forward_s"), py::arg("backward_s"),
          py::arg("transfers_s") = 0.0);
  module.def(
      "pipeline_step_s",
      [](const std::vector<StageTime>& stages, int micro_batches,
         const std::string& schedule) {
        TO_CHECK(micro_batches >= 1, "micro_batches = {}: must be >= 1",
                 micro_batches);
        return step_seconds(stages, micro_batches, parse_schedule(schedule));
      },
      py::arg("stages"), py::arg("micro_batches"), py::arg("schedule") = "1f1b",
      "In closed form; pipeline/step_time.h.");
}

}  // namespace

void bind_pipelines(py::module_& module) {
  bind_choices(module);
  bind_shape(module);
  bind_composition(module);
  bind_step_time(module);
}

}  // namespace tensoropt
