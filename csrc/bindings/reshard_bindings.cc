// Meshes, clusters, collective models and reshard plans.

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "comm/collective.h"
#include "reshard/encode.h"
#include "reshard/planner.h"

namespace py = pybind11;

namespace tensoropt {

namespace {

void bind_cluster(py::module_& module) {
  py::class_<Mesh>(module, "Mesh", "All devices, one axis per prime factor.")
      .def(py::init([](const std::vector<std::pair<int, int>>& axes) {
             std::vector<MeshAxis> list;
             for (const auto& [size, level] : axes) list.push_back({size, level});
             return Mesh(std::move(list));
           }),
           py::arg("axes"), "axes: (size, level) for each, outermost first")
      .def_property_readonly("num_axes", &Mesh::num_axes)
      .def_property_readonly("num_devices", &Mesh::num_devices)
      .def("group_of", &Mesh::group_of, py::arg("axes"), py::arg("rank"))
      .def("index_in", &Mesh::index_in, py::arg("axes"), py::arg("rank"));

  py::class_<Device>(module, "Device")
      .def(py::init([](std::string name, double memory_bytes,
                       double memory_bandwidth_bytes_per_s,
                       double launch_overhead_s,
                       const std::map<std::string, double>& peak_flops_per_s,
                       double matmul_efficiency, double memory_efficiency) {
             std::map<DType, double> peaks;
             for (const auto& [dtype, flops] : peak_flops_per_s) {
               peaks[parse_dtype(dtype)] = flops;
             }
             return Device{std::move(name), memory_bytes,
                           memory_bandwidth_bytes_per_s, launch_overhead_s,
                           std::move(peaks), matmul_efficiency,
                           memory_efficiency};
           }),
           py::arg("name"), py::arg("memory_bytes"),
           py::arg("memory_bandwidth_bytes_per_s"),
           py::arg("launch_overhead_s"), py::arg("peak_flops_per_s"),
           py::arg("matmul_efficiency"), py::arg("memory_efficiency"))
      .def_readonly("memory_bytes", &Device::memory_bytes);

  py::class_<Level>(module, "Level")
      .def(py::init([](std::string name, int count,
                       double bandwidth_bytes_per_s, double latency_s) {
             return Level{std::move(name), count, bandwidth_bytes_per_s,
                          latency_s};
           }),
           py::arg("name"), py::arg("count"), py::arg("bandwidth_bytes_per_s"),
           py::arg("latency_s"));

  py::class_<Cluster>(module, "Cluster")
      .def(py::init([](std::string name, Device device,
                       std::vector<Level> levels) {
             return Cluster{std::move(name), std::move(device),
                            std::move(levels)};
           }),
           py::arg("name"), py::arg("device"), py::arg("levels"));

  py::enum_<Collective>(module, "Collective")
      .value("ALL_REDUCE", Collective::kAllReduce)
      .value("ALL_GATHER", Collective::kAllGather)
      .value("REDUCE_SCATTER", Collective::kReduceScatter)
      .value("ALL_TO_ALL", Collective::kAllToAll)
      .value("BROADCAST", Collective::kBroadcast);

  py::class_<CollectiveSample>(module, "CollectiveSample")
      .def(py::init([](double bytes, double time_s) {
             return CollectiveSample{bytes, time_s};
           }),
           py::arg("bytes"), py::arg("time_s"));
}

}  // namespace

void bind_reshard(py::module_& module) { bind_cluster(module); }

}  // namespace tensoropt
