// Planning and emission.

#include <pybind11/stl.h>

#include <map>

#include "baselines/work_splits.h"
#include "bindings/bindings.h"
#include "bindings/literals.h"
#include "bindings/planner.h"
#include "common/check.h"
#include "emit/rank_program.h"
#include "problem/random_strategy.h"
#include "space/network_time.h"

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

py::dict describe_edge(const StrategySpace& space, const SpaceEdge& edge,
                       const Strategy& strategy, int index) {
  const Port& from = space.source_port(edge, strategy.config[edge.source]);
  const Port& to = space.target_port(edge, strategy.config[edge.target]);
  py::dict row;
  row["source"] = space.nodes()[edge.source].name;
  row["target"] = space.nodes()[edge.target].name;
  row["value"] = edge.value;
  row["from"] = from.value.to_string();
  row["to"] = to.value.to_string();
  row["gradient_from"] = to.gradient.to_string();
  row["gradient_to"] = from.gradient.to_string();
  const EdgeChoice choice = EdgeChoice::of(strategy.edge_tag[index]);
  row["reuse"] = std::string(to_string(choice.reuse));
  row["held"] = choice.held;
  row["summed"] = choice.summed;
  return row;
}

py::list describe_nodes(const StrategySpace& space) {
  py::list rows;
  for (const SpaceNode& node : space.nodes()) {
    py::dict row;
    row["name"] = node.name;
    row["target"] =
        node.node >= 0 ? space.graph().node(node.node).target : "relay";
    row["graph_node"] = node.node;
    py::list labels;
    py::list runs_again;
    for (const SpaceConfig& config : node.configs->configs) {
      labels.append(config.label);
      runs_again.append(config.runs_again);
    }
    row["configs"] = labels;
    row["runs_again"] = runs_again;
    rows.append(row);
  }
  return rows;
}

// For each operator its FLOPs, forward and backward, of all devices together,
// and what splits them on each mesh axis.
py::list describe_work(const StrategySpace& space, const Strategy& strategy) {
  space.check(strategy);
  const WorkSplits splits(space);
  py::list rows;
  for (std::size_t i = 0; i < space.nodes().size(); ++i) {
    const SpaceNode& node = space.nodes()[i];
    if (node.kind != SpaceNodeKind::kOp) continue;
    py::list by_axis;
    const SpaceConfig& config = node.configs->configs[strategy.config[i]];
    for (const WorkSplit split : splits.of(node, config)) {
      by_axis.append(std::string(to_string(split)));
    }
    const Node& op = space.graph().node(node.node);
    const Rule& rule = space.rule(op.id);
    py::dict row;
    row["name"] = node.name;
    row["flops"] = rule.forward_flops +
                   (space.graph().has_backward(op) ? rule.backward_flops : 0);
    row["splits"] = by_axis;
    rows.append(row);
  }
  return rows;
}

// Layouts of all ports by config, for choosing configs by what they do.
py::list describe_ports(const StrategySpace& space, int node) {
  const auto ports = [](const std::vector<Port>& list) {
    py::list rows;
    for (const Port& port : list) {
      rows.append(
          py::make_tuple(port.value.to_string(), port.gradient.to_string()));
    }
    return rows;
  };
  py::list rows;
  for (const SpaceConfig& config : space.nodes()[node].configs->configs) {
    rows.append(py::make_tuple(ports(config.inputs), ports(config.outputs)));
  }
  return rows;
}

py::list output_rows(const StrategySpace& space,
                     const std::map<std::string, int>& dims) {
  const std::vector<BatchRows> rows = space.batch_rows([&](const Node& node) {
    const auto found = dims.find(node.name);
    return found == dims.end() ? -1 : found->second;
  });
  py::list found;
  for (const Node& node : space.graph().nodes()) {
    if (node.kind != NodeKind::kOutput) continue;
    for (const ValueId id : node.operands) {
      found.append(py::make_tuple(rows[id].dim(), rows[id].depends));
    }
  }
  return found;
}

// The units of an operator's operands and outputs, by dim; empty: single
// entries.
py::tuple units_of_node(const StrategySpace& space, NodeId id) {
  const Node& node = space.graph().node(id);
  const auto units = [&](const std::vector<ValueId>& values) {
    py::list rows;
    for (const ValueId value : values) {
      rows.append(space.graph().value(value).meta.units);
    }
    return rows;
  };
  return py::make_tuple(units(node.operands), units(node.outputs));
}

void bind_emitted_reshard(py::module_& module) {
  using Self = const EmittedReshard&;
  py::class_<EmittedReshard>(
      module, "EmittedReshard",
      "What an edge of the space stands for on a rank: programs, and the axis "
      "sets of their groups; emit/rank_program.h.")
      .def_property_readonly("forward",
                             [](Self self) { return self.forward.steps; })
      .def_property_readonly("forward_sets",
                             [](Self self) { return self.forward.groups; })
      .def_property_readonly("backward",
                             [](Self self) { return self.backward.steps; })
      .def_property_readonly("backward_sets",
                             [](Self self) { return self.backward.groups; })
      .def_property_readonly(
          "kept", [](Self self) { return to_string(self.choice.reuse); })
      .def_property_readonly("held", [](Self self) { return self.choice.held; })
      .def_property_readonly("summed",
                             [](Self self) { return self.choice.summed; })
      .def_readonly("recomputes_source", &EmittedReshard::recomputes_source)
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

py::dict call_dict(const EmittedCall& call) {
  py::dict row = form_dict(call.form);
  row["random"] = call.random;
  row["shard_index"] = call.shard_index;
  row["runs_again"] = call.runs_again;
  py::list lookups;
  for (const EmittedLookup& lookup : call.lookups) {
    lookups.append(py::make_tuple(lookup.operand, lookup.low, lookup.high,
                                  lookup.ignored, lookup.axes));
  }
  row["lookups"] = lookups;
  return row;
}

py::dict stats_dict(const SearchStats& stats) {
  py::dict row;
  row["plan_s"] = stats.plan_seconds;
  row["bound_s"] = stats.bound_seconds;
  row["product_s"] = stats.product_seconds;
  row["recombine_s"] = stats.recombine_seconds;
  row["branch_eliminations"] = stats.branch_eliminations;
  row["node_eliminations"] = stats.node_eliminations;
  row["conditioned_eliminations"] = stats.conditioned_eliminations;
  row["heuristic_eliminations"] = stats.heuristic_eliminations;
  row["products_computed"] = stats.products_computed;
  row["products_reused"] = stats.products_reused;
  row["rounds"] = stats.rounds;
  row["bound_passes"] = stats.bound_passes;
  row["cells"] = stats.cells;
  row["cells_alive"] = stats.cells_alive;
  row["pairs"] = stats.pairs;
  row["pairs_pruned"] = stats.pairs_pruned;
  row["largest_frontier"] = stats.largest_frontier;
  return row;
}

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
      .def_readonly("config", &Strategy::config)
      .def_readonly("edge_tag", &Strategy::edge_tag);

  py::class_<SearchResult>(module, "SearchResult")
      .def_property_readonly(
          "points",
          [](const SearchResult& result) {
            py::list points;
            for (const auto& point : result.points()) {
              points.append(py::make_tuple(point.memory, point.time));
            }
            return points;
          })
      .def("unroll", &SearchResult::unroll, py::arg("point"))
      .def_property_readonly("exact", &SearchResult::exact)
      .def_property_readonly("epsilon", &SearchResult::epsilon)
      .def_property_readonly("min_memory", &SearchResult::min_memory)
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
        return stats_dict(result.stats());
      });
}

void bind_baselines(py::class_<Planner, std::shared_ptr<Planner>>& planner) {
  py::class_<BaselineResult>(planner, "BaselineResult")
      .def_property_readonly(
          "points",
          [](const BaselineResult& result) {
            py::list points;
            for (const Point& point : result.points()) {
              points.append(py::make_tuple(point.memory, point.time));
            }
            return points;
          })
      .def_property_readonly("exact", &BaselineResult::exact)
      .def("unroll", &BaselineResult::unroll, py::arg("point"));
  planner
      .def(
          "baseline",
          [](Planner& self, const std::string& name, double epsilon,
             int num_threads, const std::vector<double>& pick_limits) {
            SearchOptions options;
            options.epsilon = epsilon;
            options.num_threads = num_threads;
            options.pick_limits = pick_limits;
            const py::gil_scoped_release release;
            return self.baselines(num_threads)
                .find(parse_baseline(name), options);
          },
          py::arg("name"), py::arg("epsilon"), py::arg("num_threads") = 0,
          py::arg("pick_limits") = std::vector<double>{})
      .def(
          "play",
          [](Planner& self,
             const std::vector<std::pair<std::string, int>>& roles,
             double epsilon) {
            SearchOptions options;
            options.epsilon = epsilon;
            const py::gil_scoped_release release;
            return self.baselines(0).play(parse_roles(roles), options);
          },
          py::arg("roles"), py::arg("epsilon"),
          "The frontier when each mesh axis plays a role, given as (kind, name "
          "of a dim or -1); csrc/baselines/axis_roles.h.")
      .def_property_readonly(
          "named_dims",
          [](Planner& self) {
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

void bind_space(py::class_<Planner, std::shared_ptr<Planner>>& planner) {
  planner
      .def("describe_nodes",
           [](const Planner& self) { return describe_nodes(self.space()); })
      .def(
          "choices",
          [](Planner& self, const Strategy& strategy) {
            const NamedChoices choices = self.names().of(strategy);
            py::list configs;
            for (std::size_t i = 0; i < choices.configs.size(); ++i) {
              configs.append(py::make_tuple(self.space().nodes()[i].name,
                                            choices.configs[i]));
            }
            py::list edges;
            for (const auto& [number, words] : choices.edges) {
              edges.append(py::make_tuple(
                  number, self.names().edge_name(number), words));
            }
            return py::make_tuple(configs, edges);
          },
          py::arg("strategy"),
          "Name and config of each node; number and name of edges and what is "
          "kept there; space/strategy_names.h.")
      .def(
          "strategy",
          [](Planner& self, std::vector<std::string> configs,
             std::map<int, std::string> edges) {
            return self.names().strategy(
                {std::move(configs), std::move(edges)});
          },
          py::arg("configs"), py::arg("edges"),
          "The strategy with these configs by node, and so on the edges with "
          "these numbers, without its costs.")
      .def(
          "check_edges",
          [](Planner& self, const Strategy& strategy) {
            self.names().check_edges(strategy);
          },
          py::arg("strategy"),
          "Raises if a value cannot go to a consumer as the strategy says.")
      .def(
          "describe_work",
          [](const Planner& self, const Strategy& strategy) {
            return describe_work(self.space(), strategy);
          },
          py::arg("strategy"), "What splits operators; work_splits.h.")
      .def("describe_ports",
           [](const Planner& self, int node) {
             return describe_ports(self.space(), node);
           })
      .def(
          "output_rows",
          [](const Planner& self, const std::map<std::string, int>& dims) {
            return output_rows(self.space(), dims);
          },
          py::arg("dims"),
          "For each output in which dim it has the rows that inputs have in "
          "these dims (-1: it has none), and whether it depends on them.")
      .def(
          "units_of_node",
          [](const Planner& self, int graph_node) {
            return units_of_node(self.space(), graph_node);
          },
          py::arg("graph_node"),
          "How many neighbouring entries of each dim are never parted, of "
          "operands and outputs; empty: single ones.")
      .def("describe_edges",
           [](const Planner& self, const Strategy& strategy) {
             self.space().check(strategy);
             py::list rows;
             const auto& edges = self.space().edges();
             for (std::size_t i = 0; i < edges.size(); ++i) {
               rows.append(describe_edge(self.space(), edges[i], strategy,
                                         static_cast<int>(i)));
             }
             return rows;
           })
      .def(
          "network_time",
          [](const Planner& self, const Strategy& strategy) {
            return network_time_s(self.space(), strategy);
          },
          py::arg("strategy"),
          "Seconds of a strategy's reshards and inner collectives.")
      .def(
          "compute_time",
          [](const Planner& self, const Strategy& strategy) {
            return compute_time_s(self.space(), strategy);
          },
          py::arg("strategy"), "Seconds of all else that a strategy does.")
      .def(
          "edges",
          [](const Planner& self) {
            py::list rows;
            for (const SpaceEdge& edge : self.space().edges()) {
              const NodeId target = self.space().nodes()[edge.target].node;
              rows.append(py::make_tuple(edge.value, target, edge.target_port));
            }
            return rows;
          },
          "(value, graph node that consumes it or -1 for the relay, operand "
          "index) for every edge.")
      .def(
          "parameter_copies",
          [](const Planner& self) {
            std::vector<NodeId> nodes;
            for (const Node& node : self.space().graph().nodes()) {
              if (self.space().copies_parameter(node)) nodes.push_back(node.id);
            }
            return nodes;
          },
          "Graph nodes that cast a parameter to a narrower dtype; "
          "space/parameter_copies.h.")
      .def_property_readonly(
          "complete",
          [](const Planner& self) { return self.space().complete(); })
      .def(
          "explain",
          [](const Planner& self) { return explanation_records(self.space()); },
          "A record for each operator and parameter; csrc/space/explain.h.")
      .def("unknown_targets",
           [](const Planner& self) { return self.space().unknown_targets(); })
      .def_property_readonly("num_nodes", [](const Planner& self) {
        return self.space().nodes().size();
      });
}

}  // namespace

void bind_planner(py::module_& module) {
  bind_strategy(module);

  py::class_<Planner, std::shared_ptr<Planner>> planner(
      module, "Planner", "The strategies of one model on one mesh.");
  planner
      .def(py::init<std::shared_ptr<Graph>, Rules, PlannerSetup>(),
           py::arg("graph"), py::arg("rules"), py::arg("setup"))
      .def(
          "build",
          [](Planner& self, int num_threads) { self.problem(num_threads); },
          py::arg("num_threads") = 0, py::call_guard<py::gil_scoped_release>(),
          "Computes all cost tables (search does it when it is not done).")
      .def("search", &Planner::run, py::arg("options"),
           py::arg("allowed") = std::vector<std::vector<bool>>{},
           py::call_guard<py::gil_scoped_release>())
      .def("restrict_to", &Planner::restrict_to, py::arg("allowed"),
           "From now on only the configs of each space node that it marks.")
      .def(
          "blocked_node",
          [](Planner& self, const std::vector<ConfigMask>& allowed)
              -> std::optional<std::string> {
            const int node = self.blocked_node(allowed);
            if (node < 0) return std::nullopt;
            return self.space().nodes()[node].name;
          },
          py::arg("allowed"), py::call_guard<py::gil_scoped_release>(),
          "The name of a node that cannot be combined with its neighbours if "
          "only these configs are allowed; None if there is none.")
      .def(
          "random_strategy",
          [](Planner& self, std::uint64_t seed, double greed) {
            return random_strategy(self.problem(0), seed, greed);
          },
          py::arg("seed"), py::arg("greed") = 0.0,
          py::call_guard<py::gil_scoped_release>());
  bind_space(planner);
  bind_op_profile(module, planner);
  bind_baselines(planner);

  bind_emitted_reshard(module);
  py::class_<RankProgram>(module, "RankProgram",
                          "What one rank runs for one strategy.")
      .def(py::init([](const std::shared_ptr<Planner>& self,
                       const Strategy& strategy, int rank) {
             return std::make_unique<RankProgram>(
                 self->space(), self->registry(), strategy, rank);
           }),
           py::arg("planner"), py::arg("strategy"), py::arg("rank"),
           py::keep_alive<1, 2>())
      .def("reshard", &RankProgram::reshard)
      .def("gradient_layout",
           [](const RankProgram& self, int edge) {
             return self.gradient_layout(edge).to_string();
           })
      .def("call", [](const RankProgram& self,
                      NodeId node) { return call_dict(self.call(node)); })
      .def("layout_of", [](const RankProgram& self, ValueId value) {
        return self.layout_of(value).to_string();
      });
}

}  // namespace tensoropt
