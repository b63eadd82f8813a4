// Meshes, clusters, times of collectives, and reshards. Layouts are strings
// ("S0,R"), axis sets are integers (bit i is axis i).

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "comm/cluster.h"
#include "comm/collective.h"
#include "common/check.h"
#include "reshard/encode.h"
#include "reshard/moves.h"
#include "reshard/resharder.h"

namespace py = pybind11;

namespace tensoropt {

namespace {

using PyAxis = std::pair<int, int>;

Mesh make_mesh(const std::vector<PyAxis>& axes) {
  std::vector<MeshAxis> mesh_axes;
  for (const auto& [size, level] : axes) mesh_axes.push_back({size, level});
  return Mesh(std::move(mesh_axes));
}

void check_axes(const Mesh& mesh, AxisSet axes) {
  TO_CHECK(axes >> mesh.num_axes() == 0, "axis set {:#b}: the mesh has {} axes",
           axes, mesh.num_axes());
}

void check_rank(const Mesh& mesh, int rank) {
  TO_CHECK(rank >= 0 && rank < mesh.num_devices(),
           "rank {} is not in a mesh of {} devices", rank, mesh.num_devices());
}

void bind_mesh(py::module_& module) {
  py::class_<Mesh>(module, "Mesh",
                   "All devices of a job: (size, level) per mesh axis, "
                   "outermost first.")
      .def(py::init(&make_mesh), py::arg("axes"))
      .def_property_readonly("num_devices", &Mesh::num_devices)
      .def(
          "canonical",
          [](const Mesh& mesh, AxisSet axes) {
            check_axes(mesh, axes);
            return mesh.canonical(axes);
          },
          py::arg("axes"),
          "The set of the first axes alike to those of the set: equal for "
          "sets over which collectives cost the same.")
      .def(
          "group_of",
          [](const Mesh& mesh, AxisSet axes, int rank) {
            check_axes(mesh, axes);
            check_rank(mesh, rank);
            return mesh.group_of(axes, rank);
          },
          py::arg("axes"), py::arg("rank"),
          "The ranks that differ from `rank` along these axes only, "
          "ascending.");
}

void bind_collective(py::module_& module) {
  py::enum_<Collective> collective(module, "Collective");
  for (int i = 0; i < kNumCollectives; ++i) {
    std::string name(to_string(static_cast<Collective>(i)));
    for (char& c : name) c = static_cast<char>(std::toupper(c));
    collective.value(name.c_str(), static_cast<Collective>(i));
  }
}

std::map<DType, double> rates_of(const std::map<std::string, double>& named) {
  std::map<DType, double> rates;
  for (const auto& [dtype, rate] : named) rates[parse_dtype(dtype)] = rate;
  return rates;
}

std::map<std::string, double> named_rates(
    const std::map<DType, double>& rates) {
  std::map<std::string, double> named;
  for (const auto& [dtype, rate] : rates) named.emplace(to_string(dtype), rate);
  return named;
}

void bind_cluster(py::module_& module) {
  const Device defaults;
  py::class_<Device>(module, "Device", "One device; see comm/cluster.h.")
      .def(py::init([](std::string name, double memory_bytes,
                       double memory_bandwidth_bytes_per_s,
                       double launch_overhead_s, double host_launch_s,
                       const std::map<std::string, double>& peak_flops_per_s,
                       double matmul_efficiency, double memory_efficiency,
                       std::optional<double> attention_efficiency) {
             return Device{
                 .name = std::move(name),
                 .memory_bytes = memory_bytes,
                 .memory_bandwidth_bytes_per_s = memory_bandwidth_bytes_per_s,
                 .launch_overhead_s = launch_overhead_s,
                 .host_launch_s = host_launch_s,
                 .peak_flops_per_s = rates_of(peak_flops_per_s),
                 .matmul_efficiency = matmul_efficiency,
                 .memory_efficiency = memory_efficiency,
                 .attention_efficiency = attention_efficiency};
           }),
           py::kw_only(), py::arg("name") = defaults.name,
           py::arg("memory_bytes") = defaults.memory_bytes,
           py::arg("memory_bandwidth_bytes_per_s") =
               defaults.memory_bandwidth_bytes_per_s,
           py::arg("launch_overhead_s") = defaults.launch_overhead_s,
           py::arg("host_launch_s") = defaults.host_launch_s,
           py::arg("peak_flops_per_s") = named_rates(defaults.peak_flops_per_s),
           py::arg("matmul_efficiency") = defaults.matmul_efficiency,
           py::arg("memory_efficiency") = defaults.memory_efficiency,
           py::arg("attention_efficiency") = defaults.attention_efficiency);

  py::class_<LinkSpeed>(module, "LinkSpeed",
                        "What messages reach over a link of a level.")
      .def(py::init<double, double>(), py::arg("bandwidth_bytes_per_s"),
           py::arg("latency_s"));

  py::class_<Level>(module, "Level",
                    "One kind of network; the bandwidth is that of one unit's "
                    "link into it. Collectives may reach other figures.")
      .def(py::init<std::string, int, double, double,
                    std::map<Collective, LinkSpeed>>(),
           py::kw_only(), py::arg("name"), py::arg("count"),
           py::arg("bandwidth_bytes_per_s"), py::arg("latency_s"),
           py::arg("collectives") = std::map<Collective, LinkSpeed>{});

  py::class_<Cluster>(module, "Cluster", "Levels go from outer to inner.")
      .def(py::init([](std::string name, const Device& device,
                       const std::vector<Level>& levels) {
             Cluster cluster{std::move(name), device, levels};
             validate(cluster);
             return cluster;
           }),
           py::arg("name"), py::arg("device"), py::arg("levels"))
      .def_readonly("device", &Cluster::device);
}

void bind_collectives(py::module_& module) {
  py::class_<CollectiveSample>(module, "CollectiveSample",
                               "How long a collective of so many bytes took.")
      .def(py::init<double, double>(), py::arg("bytes"), py::arg("time_s"));

  py::class_<CollectiveModel>(module, "CollectiveModel")
      .def("time_s", &CollectiveModel::time_s, py::arg("collective"),
           py::arg("axes"), py::arg("bytes"),
           "Seconds of one group while all groups over these axes are active.");
  py::class_<AnalyticCollectives, CollectiveModel>(module,
                                                   "AnalyticCollectives")
      .def(py::init<const Cluster&, const Mesh&>(), py::arg("cluster"),
           py::arg("mesh"));
  py::class_<MeasuredCollectives, CollectiveModel>(module,
                                                   "MeasuredCollectives")
      .def(py::init<const Mesh&, const CollectiveTable&,
                    const CollectiveModel&>(),
           py::arg("mesh"), py::arg("table"), py::arg("fallback"),
           py::keep_alive<1, 4>(),
           "`table`: samples by collective and axis set.")
      .def("is_measured", &MeasuredCollectives::is_measured,
           py::arg("collective"), py::arg("axes"));
}

struct ReshardedTensor {
  TensorMeta meta;
  int item_size = 1;
  bool uneven = false;
};

// A resharder with the mesh that its programs are encoded for.
struct PyResharder {
  Mesh mesh;
  TensorMeta tensor;
  TensorResharder resharder;

  const TensorResharder::Path& path(const std::string& from,
                                    const std::string& to) const {
    return resharder.path(Layout::parse(from), Layout::parse(to));
  }
};

void bind_resharder(py::module_& module) {
  py::class_<EncodedProgram>(
      module, "EncodedProgram",
      "A reshard as the operator tensoropt::reshard takes it: integers of its "
      "steps, and the axis sets of its groups; reshard/encode.h.")
      .def_readonly("steps", &EncodedProgram::steps)
      .def_readonly("groups", &EncodedProgram::groups);

  py::class_<ReshardedTensor>(module, "ReshardedTensor",
                              "A tensor, of bytes per element. With `uneven` "
                              "its parts may differ; `units` as in NodeUnits.")
      .def(py::init([](Shape shape, int item_size, bool uneven, Shape units) {
             return ReshardedTensor{
                 .meta = {.shape = std::move(shape), .units = std::move(units)},
                 .item_size = item_size,
                 .uneven = uneven};
           }),
           py::kw_only(), py::arg("shape"), py::arg("item_size"),
           py::arg("uneven") = false, py::arg("units") = Shape{});

  py::class_<PyResharder>(module, "TensorResharder",
                          "Fastest reshards of one tensor; see "
                          "reshard/resharder.h.")
      .def(
          py::init([](const Mesh& mesh, const CollectiveModel& collectives,
                      const Device& device, const ReshardedTensor& tensor) {
            const std::int64_t bytes =
                tensor.item_size * tensor.meta.unit_elements();
            return PyResharder{
                mesh, tensor.meta,
                TensorResharder(mesh, collectives, device, tensor.meta.counts(),
                                bytes, TensorResharder::kMaxLayouts, kAllDims,
                                tensor.uneven ? kAllDims : 0)};
          }),
          py::arg("mesh"), py::arg("collectives"), py::arg("device"),
          py::arg("tensor"))
      .def(
          "describe",
          [](const PyResharder& self, const std::string& from,
             const std::string& to) {
            return to_string(self.path(from, to).steps);
          },
          py::arg("from_layout"), py::arg("to_layout"), "The steps in words.")
      .def(
          "encode",
          [](const PyResharder& self, const std::string& from,
             const std::string& to, int rank) {
            return encode(self.path(from, to).steps, self.tensor,
                          Layout::parse(from), self.mesh, rank);
          },
          py::arg("from_layout"), py::arg("to_layout"), py::arg("rank"),
          "As the operator tensoropt::reshard takes it.");
}

}  // namespace

void bind_reshard(py::module_& module) {
  bind_mesh(module);
  bind_collective(module);
  bind_cluster(module);
  bind_collectives(module);
  bind_resharder(module);
}

}  // namespace tensoropt
