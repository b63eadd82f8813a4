// Calls of operators to measure, and measured times.

#include <pybind11/stl.h>

#include "bindings/literals.h"
#include "bindings/planner.h"
#include "common/check.h"

namespace py = pybind11;

namespace tensoropt {

namespace {

py::dict local_call_dict(const LocalCall& call) {
  py::list operands;
  for (const LocalOperand& operand : call.operands) {
    operands.append(py::make_tuple(operand.meta.shape,
                                   std::string(to_string(operand.meta.dtype)),
                                   operand.requires_grad));
  }
  py::dict row = form_dict(call.form);
  row["key"] = call.key;
  row["family"] = call.family;
  row["operands_meta"] = operands;
  row["work"] = call.work;
  return row;
}

// Where the time of every operator of a strategy is from.
py::list describe_estimates(const StrategySpace& space,
                            const OpProfile& operators,
                            const Strategy& strategy) {
  space.check(strategy);
  py::list rows;
  for (std::size_t i = 0; i < space.nodes().size(); ++i) {
    const SpaceNode& node = space.nodes()[i];
    if (node.kind != SpaceNodeKind::kOp) continue;
    const SpaceConfig& config = node.configs->configs[strategy.config[i]];
    const LocalCall call = space.local_call_of(node.node, config.uses);
    const OpEstimate estimate = operators.estimate(call);
    py::dict row;
    row["node"] = i;
    row["name"] = node.name;
    row["key"] = call.key;
    row["family"] = call.family;
    row["source"] = std::string(to_string(estimate.source));
    row["time_s"] = estimate.times.forward_s + estimate.times.backward_s;
    row["again_s"] = config.runs_again ? estimate.times.forward_s : 0.0;
    row["error"] = estimate.error;
    rows.append(row);
  }
  return rows;
}

void bind_samples(py::module_& module) {
  py::class_<OpWork>(module, "OpWork",
                     "What one rank computes for one operator.")
      .def(py::init([](const std::string& dtype, double forward_flops,
                       double backward_flops, double bytes, double launches,
                       bool backward, bool view) {
             return OpWork{parse_dtype(dtype),
                           forward_flops,
                           backward_flops,
                           bytes,
                           launches,
                           backward,
                           view};
           }),
           py::arg("dtype"), py::arg("forward_flops"),
           py::arg("backward_flops"), py::arg("bytes"), py::arg("launches"),
           py::arg("backward"), py::arg("view"))
      .def("as_tuple", [](const OpWork& work) {
        return py::make_tuple(std::string(to_string(work.dtype)),
                              work.forward_flops, work.backward_flops,
                              work.bytes, work.launches, work.backward,
                              work.view);
      });
  py::class_<OpSample>(module, "OpSample", "A measured call; op_profile.h.")
      .def(py::init([](std::string key, std::string family, const OpWork& work,
                       double forward_s, double backward_s) {
             return OpSample{std::move(key),
                             std::move(family),
                             work,
                             {forward_s, backward_s}};
           }),
           py::arg("key"), py::arg("family"), py::arg("work"),
           py::arg("forward_s"), py::arg("backward_s"));
}

void bind_local_calls(py::class_<Planner, std::shared_ptr<Planner>>& planner) {
  planner
      .def(
          "local_call",
          [](const Planner& self, int node, int config, int rank) {
            const SpaceNode& at = self.space().nodes().at(node);
            TO_CHECK(at.kind == SpaceNodeKind::kOp, "'{}' is not an operator",
                     at.name);
            py::dict row = local_call_dict(self.space().local_call_of(
                at.node, at.configs->configs.at(config).uses, rank));
            row["random"] = self.space().rule(at.node).random;
            return row;
          },
          py::arg("node"), py::arg("config"), py::arg("rank") = 0,
          "The call that a rank makes in a config; cost/local_call.h.")
      .def(
          "describe_estimates",
          [](const Planner& self, const Strategy& strategy) {
            return describe_estimates(self.space(), self.operators(), strategy);
          },
          py::arg("strategy"),
          "For each operator its time and where that is from.");
}

}  // namespace

py::dict form_dict(const LocalForm& form) {
  py::dict arguments;
  for (const NamedArgument& named : form.arguments) {
    arguments[py::str(named.name)] =
        literal_object(std::get<Literal>(named.value));
  }
  py::list extra;
  for (const Literal& literal : form.extra) {
    extra.append(literal_object(literal));
  }
  py::dict row;
  row["target"] = form.target;
  row["arguments"] = arguments;
  row["operands"] = form.operands;
  row["extra"] = extra;
  row["groups"] = form.groups;
  py::list halos;
  for (const Halo& halo : form.halos) {
    halos.append(
        py::make_tuple(halo.dim, halo.low, halo.high, halo.fill, halo.axes));
  }
  row["halos"] = halos;
  py::list averaged;
  for (const AveragedBuffer& buffer : form.averaged) {
    averaged.append(py::make_tuple(
        buffer.operand, py::make_tuple(buffer.own.begin, buffer.own.size()),
        buffer.axes, buffer.joined));
  }
  row["averaged"] = averaged;
  row["scale"] = form.scale;
  return row;
}

void bind_op_profile(py::module_& module,
                     py::class_<Planner, std::shared_ptr<Planner>>& planner) {
  bind_samples(module);
  bind_local_calls(planner);
}

}  // namespace tensoropt
