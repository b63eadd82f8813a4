// Search spaces, and what is found in them.

#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <tuple>
#include <variant>

#include "bindings/bindings.h"
#include "bindings/ids.h"
#include "bindings/rules.h"
#include "common/check.h"
#include "describe/descriptions.h"
#include "describe/network_time.h"
#include "problem/random_strategy.h"
#include "search_space/search_space.h"

namespace py = pybind11;

namespace tensoropt {

namespace {

Baseline parse_baseline(const std::string& name) {
  static const std::map<std::string, Baseline> kBaselines{
      {"data parallel", Baseline::kDataParallel},
      {"ZeRO-3", Baseline::kZero3},
      {"Megatron", Baseline::kMegatron},
      {"Mesh-TensorFlow", Baseline::kMeshTensorFlow},
      {"OptCNN", Baseline::kOptCnn},
      {"ToFu", Baseline::kToFu}};
  const auto found = kBaselines.find(name);
  TO_CHECK(found != kBaselines.end(), "there is no baseline '{}'", name);
  return found->second;
}

AxisRoles parse_roles(const std::vector<std::pair<std::string, int>>& roles) {
  static const std::map<std::string, RoleKind> kKinds{
      {"split", RoleKind::kSplit},
      {"data", RoleKind::kData},
      {"shard", RoleKind::kShard},
      {"tensor", RoleKind::kTensor},
      {"everything", RoleKind::kEverything}};
  AxisRoles result;
  for (const auto& [kind, name] : roles) {
    const auto found = kKinds.find(kind);
    TO_CHECK(found != kKinds.end(), "there is no role '{}'", kind);
    result.push_back({found->second, name});
  }
  return result;
}

std::vector<std::pair<double, double>> points_of(const auto& result) {
  std::vector<std::pair<double, double>> points;
  for (const auto& point : result.points()) {
    points.emplace_back(point.memory, point.time);
  }
  return points;
}

using Figure = std::variant<std::int64_t, double>;

std::map<std::string, Figure> figures_of(const SearchStats& stats) {
  std::map<std::string, Figure> row;
  row["schedule_s"] = stats.schedule_seconds;
  row["bound_s"] = stats.bound_seconds;
  row["product_s"] = stats.product_seconds;
  row["recombine_s"] = stats.recombine_seconds;
  row["branch_eliminations"] = std::int64_t{stats.branch_eliminations};
  row["node_eliminations"] = std::int64_t{stats.node_eliminations};
  row["conditioned_eliminations"] =
      std::int64_t{stats.conditioned_eliminations};
  row["heuristic_eliminations"] = std::int64_t{stats.heuristic_eliminations};
  row["products_computed"] = std::int64_t{stats.products_computed};
  row["products_reused"] = std::int64_t{stats.products_reused};
  row["rounds"] = std::int64_t{stats.rounds};
  row["bound_passes"] = std::int64_t{stats.bound_passes};
  row["cells"] = std::int64_t{stats.cells};
  row["cells_alive"] = std::int64_t{stats.cells_alive};
  row["pairs"] = std::int64_t{stats.pairs};
  row["pairs_pruned"] = std::int64_t{stats.pairs_pruned};
  row["largest_frontier"] = std::int64_t{stats.largest_frontier};
  return row;
}

const SpaceNode& op_at(const StrategySpace& space, SpaceNodeId node) {
  const SpaceNode& at = space.nodes().at(node);
  TO_CHECK(at.kind == SpaceNodeKind::kOp, "'{}' is not an operator", at.name);
  return at;
}

LocalCall call_of(const StrategySpace& space, SpaceNodeId node, int config,
                  int rank) {
  const SpaceNode& at = op_at(space, node);
  return space.model().local_call_of(at.node,
                                     at.configs->configs.at(config).uses, rank);
}

IndexedVector<NodeId, int> by_node(std::vector<int> numbers) {
  return IndexedVector<NodeId, int>(std::move(numbers));
}

using BoundSpace = py::class_<SearchSpace, std::shared_ptr<SearchSpace>>;

void bind_strategy(py::module_& module) {
  py::class_<Strategy>(module, "Strategy",
                       "One config per space node, one choice per edge.")
      .def(py::init(
               [](std::vector<int> config, std::vector<std::int32_t> edge_tag) {
                 Strategy strategy;
                 strategy.config = std::move(config);
                 strategy.edge_tag = std::move(edge_tag);
                 return strategy;
               }),
           py::arg("config"), py::arg("edge_tag"))
      .def_readonly("memory", &Strategy::memory)
      .def_readonly("time", &Strategy::time)
      .def_readonly("config", &Strategy::config);

  py::class_<SearchResult>(module, "SearchResult")
      .def_property_readonly(
          "points",
          [](const SearchResult& result) { return points_of(result); },
          "(bytes, seconds) of each.")
      .def("unroll", &SearchResult::unroll, py::arg("point"))
      .def_property_readonly("exact", &SearchResult::exact)
      .def_property_readonly("epsilon", &SearchResult::epsilon)
      .def_property_readonly("min_memory", &SearchResult::min_memory)
      .def_property_readonly("min_time", &SearchResult::min_time)
      .def_property_readonly(
          "heuristics",
          [](const SearchResult& result) {
            std::vector<double> memory_weights;
            for (const Heuristic& heuristic : result.heuristics_used()) {
              memory_weights.push_back(heuristic.memory_weight);
            }
            return memory_weights;
          })
      .def_property_readonly("stats", [](const SearchResult& result) {
        return figures_of(result.stats());
      });
}

void bind_supporting_lines(py::module_& module) {
  py::class_<SupportingLines>(
      module, "SupportingLines",
      "What strategies cost at least; search/supporting_lines.h.")
      .def_property_readonly("least_bytes", &SupportingLines::least_bytes)
      .def("least_seconds", &SupportingLines::least_seconds,
           py::arg("most_bytes"), "Of a strategy with at most so many bytes.")
      .def(
          "steps",
          [](const SupportingLines& self, const std::vector<double>& limits) {
            std::vector<std::pair<double, double>> points;
            for (const Point& point : self.steps(limits)) {
              points.emplace_back(point.memory, point.time);
            }
            return points;
          },
          py::arg("limits"),
          "(bytes, seconds): the last one of less memory than a limit, of "
          "these or none, takes no more time than any strategy of less memory "
          "than that.");
}

void bind_baselines(py::module_& module, BoundSpace& search_space) {
  py::class_<BaselineResult>(module, "BaselineResult")
      .def_property_readonly(
          "points",
          [](const BaselineResult& result) { return points_of(result); },
          "(bytes, seconds) of each.")
      .def_property_readonly("exact", &BaselineResult::exact)
      .def("unroll", &BaselineResult::unroll, py::arg("point"));
  search_space
      .def(
          "baseline",
          [](SearchSpace& self, const std::string& name, double epsilon,
             int num_threads, const std::vector<double>& pick_limits) {
            SearchOptions options;
            options.epsilon = epsilon;
            options.num_threads = num_threads;
            options.pick_limits = pick_limits;
            const py::gil_scoped_release release;
            return self.told(self.baselines(num_threads)
                                 .find(parse_baseline(name), options));
          },
          py::arg("name"), py::arg("epsilon"), py::arg("num_threads") = 0,
          py::arg("pick_limits") = std::vector<double>{})
      .def(
          "least_memory",
          [](SearchSpace& self, const SearchOptions& options) {
            const py::gil_scoped_release release;
            return self.least_memory(options);
          },
          py::arg("options"),
          "Bytes per device of the strategy that needs the fewest, whatever "
          "the error that is allowed; takes less than a search.")
      .def(
          "play",
          [](SearchSpace& self,
             const std::vector<std::pair<std::string, int>>& roles,
             const SearchOptions& options) {
            const py::gil_scoped_release release;
            return self.play(parse_roles(roles), options);
          },
          py::arg("roles"), py::arg("options"),
          "The frontier when each mesh axis plays a role, given as (kind, name "
          "of a dim or -1), csrc/baselines/axis_roles.h; the memory limit is "
          "ignored.")
      .def_property_readonly(
          "named_dims",
          [](SearchSpace& self) {
            const py::gil_scoped_release release;
            const NamedDims& dims = self.baselines(0).roles().dims();
            std::vector<std::int64_t> sizes;
            for (int name = 0; name < dims.num_names(); ++name) {
              sizes.push_back(dims.size(name));
            }
            return sizes;
          },
          "The sizes of named dims, the batch first.");
}

void bind_space(BoundSpace& search_space) {
  search_space
      .def("nodes",
           [](const SearchSpace& self) { return node_rows(self.space()); })
      .def(
          "choices",
          [](SearchSpace& self, const Strategy& strategy) {
            const NamedChoices choices = self.names().of(strategy);
            std::vector<std::pair<std::string, std::string>> configs;
            for (std::size_t i = 0; i < choices.configs.size(); ++i) {
              configs.emplace_back(self.space().nodes()[i].name,
                                   choices.configs[i]);
            }
            std::vector<std::tuple<SpaceEdgeId, std::string, std::string>>
                edges;
            for (const auto& [number, words] : choices.edges) {
              edges.emplace_back(number, self.names().edge_name(number), words);
            }
            return std::pair(configs, edges);
          },
          py::arg("strategy"),
          "Name and config of each node; number and name of edges and what is "
          "kept there; describe/strategy_names.h.")
      .def(
          "strategy",
          [](SearchSpace& self, std::vector<std::string> configs,
             std::map<SpaceEdgeId, std::string> edges) {
            return self.names().strategy(
                {std::move(configs), std::move(edges)});
          },
          py::arg("configs"), py::arg("edges"),
          "The strategy with these configs by node, and so on the edges with "
          "these numbers, without its costs.")
      .def(
          "check_edges",
          [](SearchSpace& self, const Strategy& strategy) {
            self.names().check_edges(strategy);
          },
          py::arg("strategy"),
          "Raises if a value cannot go to a consumer as the strategy says.")
      .def(
          "work",
          [](const SearchSpace& self, const Strategy& strategy) {
            return work_rows(self.space(), strategy);
          },
          py::arg("strategy"), "What splits operators.")
      .def(
          "ports",
          [](const SearchSpace& self, SpaceNodeId node) {
            return port_rows(self.space(), node);
          },
          py::arg("node"), "Layouts at all ports of a node, by config.")
      .def(
          "output_rows",
          [](const SearchSpace& self, const std::map<std::string, int>& dims) {
            return output_rows(self.space(), dims);
          },
          py::arg("dims"),
          "For each output in which dim it has the rows that inputs have in "
          "these dims, and whether it depends on them.")
      .def(
          "units_of_node",
          [](const SearchSpace& self, NodeId graph_node) {
            return units_of_node(self.space(), graph_node);
          },
          py::arg("graph_node"))
      .def(
          "edges_of",
          [](const SearchSpace& self, const Strategy& strategy) {
            return edge_rows(self.space(), strategy);
          },
          py::arg("strategy"), "What a strategy does on every edge.")
      .def(
          "local_call",
          [](const SearchSpace& self, SpaceNodeId node, int config, int rank) {
            return call_of(self.space(), node, config, rank);
          },
          py::arg("node"), py::arg("config"), py::arg("rank") = 0,
          "The call that a rank makes in a config; cost/local_call.h.")
      .def(
          "estimates",
          [](const SearchSpace& self, const Strategy& strategy) {
            return estimate_rows(self.space(), self.operators(), strategy);
          },
          py::arg("strategy"),
          "For each operator its time and where that is from.")
      .def(
          "network_time",
          [](const SearchSpace& self, const Strategy& strategy) {
            return network_time_s(self.space(), strategy, self.step());
          },
          py::arg("strategy"),
          "Seconds of a strategy's reshards and inner collectives.")
      .def(
          "host_time",
          [](const SearchSpace& self, const Strategy& strategy) {
            return self.host().of(strategy);
          },
          py::arg("strategy"),
          "Seconds of the host, which a step takes at least; "
          "describe/host_time.h.")
      .def(
          "compute_time",
          [](const SearchSpace& self, const Strategy& strategy) {
            return compute_time_s(self.space(), strategy, self.step());
          },
          py::arg("strategy"), "Seconds of all else that a strategy does.")
      .def(
          "edges",
          [](const SearchSpace& self) { return edge_ends(self.space()); },
          "Where every edge goes.")
      .def(
          "parameter_copies",
          [](const SearchSpace& self) {
            return parameter_copies(self.space());
          },
          "Graph nodes that cast a parameter to a narrower dtype; "
          "space/parameter_copies.h.")
      .def_property_readonly(
          "complete",
          [](const SearchSpace& self) { return self.space().complete(); })
      .def(
          "explain",
          [](const SearchSpace& self) {
            return explanation_rows(self.space(), self.step());
          },
          "Of each operator and parameter.");
}

}  // namespace

void bind_search_space(py::module_& module) {
  bind_strategy(module);
  bind_supporting_lines(module);

  BoundSpace search_space(module, "SearchSpace",
                          "The strategies of one model on one mesh.");
  search_space
      .def(py::init([](std::shared_ptr<Graph> graph, const Rules& rules,
                       SpaceSetup setup) {
             return std::make_shared<SearchSpace>(
                 std::move(graph), rules.registry, std::move(setup));
           }),
           py::arg("graph"), py::arg("rules"), py::arg("setup"))
      .def(
          "build",
          [](SearchSpace& self, int num_threads) { self.problem(num_threads); },
          py::arg("num_threads") = 0, py::call_guard<py::gil_scoped_release>(),
          "Computes all cost tables (search does it when it is not done).")
      .def("search", &SearchSpace::search, py::arg("options"),
           py::arg("allowed") = std::vector<std::vector<bool>>{},
           py::call_guard<py::gil_scoped_release>())
      .def("build_in_flight", &SearchSpace::build_in_flight, py::arg("numbers"),
           py::arg("num_threads") = 0, py::call_guard<py::gil_scoped_release>(),
           "Computes the cost tables for these numbers of micro-batches in "
           "flight.")
      .def("search_in_flight", &SearchSpace::search_in_flight,
           py::arg("number"), py::arg("options"),
           py::call_guard<py::gil_scoped_release>(),
           "As search, with so many micro-batches in flight, of which the "
           "tables "
           "were built.")
      .def(
          "may_improve_in_flights",
          [](SearchSpace& self, std::vector<int> numbers,
             const SearchOptions& options) {
            return self.may_improve_in_flights(by_node(std::move(numbers)),
                                               options);
          },
          py::arg("numbers"), py::arg("options"),
          py::call_guard<py::gil_scoped_release>(),
          "Whether strategies may improve on the others of the options, with a "
          "number in flight of its own for each node of the graph.")
      .def(
          "least_of_parts",
          [](SearchSpace& self, std::vector<int> places,
             const std::vector<std::tuple<int, int, int>>& parts,
             std::size_t weightings, double epsilon, double memory_limit,
             int num_threads) {
            std::vector<SpacePart> asked;
            for (const auto& [first, last, in_flight] : parts) {
              asked.push_back({first, last, in_flight});
            }
            return self.least_of_parts(by_node(std::move(places)), asked,
                                       {.most = weightings,
                                        .epsilon = epsilon,
                                        .memory_limit = memory_limit,
                                        .num_threads = num_threads});
          },
          py::arg("places"), py::arg("parts"), py::kw_only(),
          py::arg("weightings"), py::arg("epsilon"), py::arg("memory_limit"),
          py::arg("num_threads"), py::call_guard<py::gil_scoped_release>(),
          "What strategies of parts (first place, last place, number in "
          "flight) cost at least, where each node of the graph has a place.")
      .def("restrict_to", &SearchSpace::restrict_to, py::arg("allowed"),
           "From now on only the configs of each space node that it marks.")
      .def(
          "blocked_node",
          [](SearchSpace& self, const std::vector<ConfigMask>& allowed)
              -> std::optional<std::string> {
            const SpaceNodeId node = self.blocked_node(allowed);
            if (node.is_none()) return std::nullopt;
            return self.space().nodes()[node].name;
          },
          py::arg("allowed"), py::call_guard<py::gil_scoped_release>(),
          "The name of a node that cannot be combined with its neighbours if "
          "only these configs are allowed; None if there is none.")
      .def(
          "random_strategy",
          [](SearchSpace& self, std::uint64_t seed, double greed) {
            return random_strategy(self.problem(0), seed, greed);
          },
          py::arg("seed"), py::arg("greed") = 0.0,
          py::call_guard<py::gil_scoped_release>());
  bind_space(search_space);
  bind_baselines(module, search_space);
}

}  // namespace tensoropt
