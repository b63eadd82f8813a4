// What a search space is made of, and how it is searched. All by keyword.

#include <pybind11/stl.h>

#include <limits>
#include <map>
#include <optional>
#include <set>

#include "bindings/bindings.h"
#include "common/check.h"
#include "search_space/search_space.h"

namespace py = pybind11;

namespace tensoropt {

namespace {

ConfigSpace parse_space(const std::string& name) {
  TO_CHECK(name == "ordered" || name == "full",
           "space must be 'ordered' or 'full', got '{}'", name);
  return name == "full" ? ConfigSpace::kFull : ConfigSpace::kOrdered;
}

ReduceDType parse_reduce_dtype(const std::string& name) {
  TO_CHECK(name == "parameter" || name == "compute",
           "reduce_dtype must be 'parameter' or 'compute', got '{}'", name);
  return name == "parameter" ? ReduceDType::kParameter : ReduceDType::kCompute;
}

// Bytes of optimizer state per element by dtype of the parameter.
TrainingSetup parse_training(const std::map<std::string, double>& state_bytes) {
  TrainingSetup::StateBytes bytes;
  for (const auto& [dtype, count] : state_bytes) {
    bytes[parse_dtype(dtype)] = count;
  }
  return TrainingSetup(std::move(bytes));
}

// Layouts by the name of the parameter that they are of.
std::map<std::string, Layout> parse_storage(
    const std::map<std::string, std::string>& texts) {
  std::map<std::string, Layout> storage;
  for (const auto& [name, text] : texts) {
    storage.emplace(name, Layout::parse(text));
  }
  return storage;
}

Algorithm parse_algorithm(const std::string& name) {
  TO_CHECK(name == "ldp" || name == "elimination",
           "algorithm must be 'ldp' or 'elimination', got '{}'", name);
  return name == "ldp" ? Algorithm::kLdp : Algorithm::kElimination;
}

std::vector<Heuristic> heuristics_of(const std::vector<double>& weights) {
  std::vector<Heuristic> heuristics;
  for (const double memory_weight : weights) {
    heuristics.push_back({memory_weight});
  }
  return heuristics;
}

void bind_overheads(py::module_& module) {
  const RuntimeOverheads defaults;
  py::class_<RuntimeOverheads>(module, "RuntimeOverheads",
                               "What the runtime takes; cost/machine.h.")
      .def(py::init([](double reshard_s, double collective_s,
                       double parameter_s, double update_s_per_byte,
                       double exposed_parameters, double exposed_gradients) {
             return RuntimeOverheads{.reshard_s = reshard_s,
                                     .collective_s = collective_s,
                                     .parameter_s = parameter_s,
                                     .update_s_per_byte = update_s_per_byte,
                                     .exposed_parameters = exposed_parameters,
                                     .exposed_gradients = exposed_gradients};
           }),
           py::kw_only(), py::arg("reshard_s") = defaults.reshard_s,
           py::arg("collective_s") = defaults.collective_s,
           py::arg("parameter_s") = defaults.parameter_s,
           py::arg("update_s_per_byte") = defaults.update_s_per_byte,
           py::arg("exposed_parameters") = defaults.exposed_parameters,
           py::arg("exposed_gradients") = defaults.exposed_gradients);
}

// What Python always says has no default here; the others have those of C++.
void bind_space_options(py::module_& module) {
  const SpaceOptions defaults;
  py::class_<SpaceOptions>(module, "SpaceOptions",
                           "Which strategies there are; space/space.h.")
      .def(py::init([](const std::string& space,
                       const std::map<std::string, double>& state_bytes,
                       bool sharded_inputs,
                       const std::set<std::string>& whole_inputs,
                       const std::map<std::string, int>& input_dims,
                       std::optional<int> row_axes, int loss_output,
                       const std::map<std::string, std::string>& storage,
                       std::size_t max_configs, bool split_spatial,
                       const std::string& reduce_dtype, double bucket_bytes,
                       double shard_bytes, bool recompute, bool compiled,
                       bool idle_configs) {
             return SpaceOptions{
                 .config_space = parse_space(space),
                 .training = parse_training(state_bytes),
                 .sharded_inputs = sharded_inputs,
                 .whole_inputs = whole_inputs,
                 .input_dims = input_dims,
                 .row_axes = row_axes,
                 .loss_output = loss_output,
                 .storage = parse_storage(storage),
                 .max_configs = max_configs,
                 .split_spatial = split_spatial,
                 .reduce_dtype = parse_reduce_dtype(reduce_dtype),
                 .bucket_bytes = bucket_bytes,
                 .shard_bytes = shard_bytes,
                 .recompute = recompute,
                 .compiled = compiled,
                 .idle_configs = idle_configs};
           }),
           py::kw_only(), py::arg("space"), py::arg("optimizer_state_bytes"),
           py::arg("sharded_inputs"),
           py::arg("whole_inputs") = defaults.whole_inputs,
           py::arg("input_dims") = defaults.input_dims,
           py::arg("row_axes") = defaults.row_axes,
           py::arg("loss_output") = defaults.loss_output,
           py::arg("storage") = std::map<std::string, std::string>{},
           py::arg("max_configs"), py::arg("split_spatial"),
           py::arg("reduce_dtype"),
           py::arg("bucket_bytes") = defaults.bucket_bytes,
           py::arg("shard_bytes") = defaults.shard_bytes,
           py::arg("recompute") = defaults.recompute,
           py::arg("compiled") = defaults.compiled,
           py::arg("idle_configs") = defaults.idle_configs);
}

void bind_space_setup(py::module_& module) {
  py::class_<SpaceSetup>(module, "SpaceSetup", "Where and how a model runs.")
      .def(py::init([](const Cluster& cluster, const Mesh& mesh,
                       const SpaceOptions& space,
                       const CollectiveTable& collectives,
                       const std::vector<OpSample>& operators,
                       const RuntimeOverheads& overheads, int micro_batches,
                       int in_flight) {
             return SpaceSetup{.cluster = cluster,
                               .mesh = mesh,
                               .space = space,
                               .collectives = collectives,
                               .operators = operators,
                               .overheads = overheads,
                               .step = {.micro_batches = micro_batches,
                                        .in_flight = in_flight}};
           }),
           py::kw_only(), py::arg("cluster"), py::arg("mesh"), py::arg("space"),
           py::arg("collectives") = CollectiveTable{},
           py::arg("operators") = std::vector<OpSample>{},
           py::arg_v("overheads", RuntimeOverheads{}, "RuntimeOverheads()"),
           py::arg("micro_batches") = StepShape{}.micro_batches,
           py::arg("in_flight") = StepShape{}.in_flight);
}

void bind_search_options(py::module_& module) {
  module.attr("DEFAULT_CONDITIONING_WORK") =
      SearchOptions{}.max_conditioning_work;
  py::class_<SearchOptions>(module, "SearchOptions",
                            "How to search; search/frontier_tracking.h.")
      .def(py::init([](const std::string& algorithm, double epsilon,
                       double memory_limit, int num_threads,
                       const std::vector<double>& heuristics,
                       double max_conditioning_work, bool use_bounds,
                       const std::vector<double>& pick_limits, bool only_picks,
                       const std::vector<std::pair<double, double>>& others) {
             SearchOptions options;
             options.algorithm = parse_algorithm(algorithm);
             options.epsilon = epsilon;
             options.memory_limit = memory_limit;
             options.num_threads = num_threads;
             options.heuristics = heuristics_of(heuristics);
             options.max_conditioning_work = max_conditioning_work;
             options.use_bounds = use_bounds;
             options.pick_limits = pick_limits;
             options.only_picks = only_picks;
             for (const auto& [memory, time] : others) {
               options.others.push_back({memory, time});
             }
             return options;
           }),
           py::kw_only(), py::arg("algorithm"), py::arg("epsilon"),
           py::arg("memory_limit"), py::arg("num_threads"),
           py::arg("heuristics"), py::arg("max_conditioning_work"),
           py::arg("use_bounds"), py::arg("pick_limits"), py::arg("only_picks"),
           py::arg("others"));
}

}  // namespace

void bind_settings(py::module_& module) {
  bind_overheads(module);
  bind_space_options(module);
  bind_space_setup(module);
  bind_search_options(module);
}

}  // namespace tensoropt
