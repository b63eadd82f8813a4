// Calls of operators on one rank, and measured times of calls.

#include <pybind11/stl.h>

#include <map>
#include <string>

#include "bindings/bindings.h"
#include "bindings/ids.h"
#include "cost/op_profile.h"
#include "emit/rank_program.h"

namespace py = pybind11;

namespace tensoropt {

namespace {

template <typename T>
bool equals(const T& self, const py::object& other) {
  return py::isinstance<T>(other) && self == other.cast<const T&>();
}

template <typename... Fields>
py::ssize_t hash_of(const Fields&... fields) {
  return py::hash(py::make_tuple(fields...));
}

void bind_form(py::module_& module) {
  py::class_<Halo>(module, "Halo",
                   "What operand 0 borrows from its neighbours; rules/rule.h.")
      .def_readonly("dim", &Halo::dim)
      .def_readonly("low", &Halo::low)
      .def_readonly("high", &Halo::high)
      .def_readonly("fill", &Halo::fill)
      .def_readonly("axes", &Halo::axes)
      .def("__eq__", &equals<Halo>)
      .def("__hash__", [](const Halo& self) {
        return hash_of(self.dim, self.low, self.high, self.fill, self.axes);
      });

  py::class_<AveragedBuffer>(
      module, "AveragedBuffer",
      "A buffer of which a call changes the entries `own` (first, how many), "
      "on each rank by what that has of the others' data. It becomes the mean "
      "over the ranks along `axes`, of which those along `joined` change other "
      "entries.")
      .def_readonly("operand", &AveragedBuffer::operand)
      .def_property_readonly("own",
                             [](const AveragedBuffer& self) {
                               return std::pair(self.own.begin,
                                                self.own.size());
                             })
      .def_readonly("axes", &AveragedBuffer::axes)
      .def_readonly("joined", &AveragedBuffer::joined)
      .def("__eq__", &equals<AveragedBuffer>)
      .def("__hash__", [](const AveragedBuffer& self) {
        return hash_of(self.operand, self.own.begin, self.own.end, self.axes,
                       self.joined);
      });

  py::class_<LocalForm>(module, "LocalForm",
                        "How the call on one rank differs from that of the "
                        "whole operator; rules/rule.h.")
      .def_readonly("target", &LocalForm::target)
      .def_property_readonly(
          "arguments",
          [](const LocalForm& self) {
            std::map<std::string, Literal> arguments;
            for (const NamedArgument& named : self.arguments) {
              arguments[named.name] = std::get<Literal>(named.value);
            }
            return arguments;
          })
      .def_readonly("operands", &LocalForm::operands)
      .def_readonly("extra", &LocalForm::extra)
      .def_readonly("groups", &LocalForm::groups)
      .def_readonly("halos", &LocalForm::halos)
      .def_readonly("averaged", &LocalForm::averaged)
      .def_readonly("scale", &LocalForm::scale);
}

void bind_emitted_call(py::module_& module) {
  py::class_<EmittedLookup>(
      module, "EmittedLookup",
      "An operand to be checked before the call: its numbers are `low` to "
      "`high` - 1, or `ignored`; emit/rank_program.h.")
      .def_readonly("operand", &EmittedLookup::operand)
      .def_readonly("low", &EmittedLookup::low)
      .def_readonly("high", &EmittedLookup::high)
      .def_readonly("ignored", &EmittedLookup::ignored)
      .def_readonly("axes", &EmittedLookup::axes)
      .def("__eq__", &equals<EmittedLookup>)
      .def("__hash__", [](const EmittedLookup& self) {
        return hash_of(self.operand, self.low, self.high, self.ignored,
                       self.axes);
      });

  py::class_<EmittedCall>(module, "EmittedCall",
                          "A call as a rank's program makes it.")
      .def_readonly("form", &EmittedCall::form)
      .def_readonly("lookups", &EmittedCall::lookups)
      .def_readonly("random", &EmittedCall::random)
      .def_readonly("saved", &EmittedCall::saved)
      .def_readonly("shard_index", &EmittedCall::shard_index);
}

void bind_work(py::module_& module) {
  py::class_<OpWork>(module, "OpWork",
                     "What one rank computes for one operator.")
      .def(py::init([](const std::string& dtype, double forward_flops,
                       double backward_flops, double bytes, double launches,
                       bool backward, bool view) {
             return OpWork{.dtype = parse_dtype(dtype),
                           .forward_flops = forward_flops,
                           .backward_flops = backward_flops,
                           .bytes = bytes,
                           .launches = launches,
                           .backward = backward,
                           .view = view};
           }),
           py::kw_only(), py::arg("dtype"), py::arg("forward_flops"),
           py::arg("backward_flops"), py::arg("bytes"), py::arg("launches"),
           py::arg("backward"), py::arg("view"))
      .def_property_readonly(
          "dtype", [](const OpWork& work) { return to_string(work.dtype); })
      .def_readonly("forward_flops", &OpWork::forward_flops)
      .def_readonly("backward_flops", &OpWork::backward_flops)
      .def_readonly("bytes", &OpWork::bytes)
      .def_readonly("launches", &OpWork::launches)
      .def_readonly("backward", &OpWork::backward)
      .def_readonly("view", &OpWork::view);

  py::class_<OpSample>(module, "OpSample", "A measured call; op_profile.h.")
      .def(py::init([](std::string key, std::string family, const OpWork& work,
                       double forward_s, double backward_s) {
             return OpSample{std::move(key),
                             std::move(family),
                             work,
                             {forward_s, backward_s}};
           }),
           py::kw_only(), py::arg("key"), py::arg("family"), py::arg("work"),
           py::arg("forward_s"), py::arg("backward_s"));
}

void bind_local_call(py::module_& module) {
  py::class_<LocalOperand>(module, "LocalOperand", "A rank's part of a tensor.")
      .def_property_readonly(
          "shape", [](const LocalOperand& self) { return self.meta.shape; })
      .def_property_readonly(
          "dtype",
          [](const LocalOperand& self) { return to_string(self.meta.dtype); })
      .def_readonly("requires_grad", &LocalOperand::requires_grad);

  py::class_<LocalCall>(module, "LocalCall",
                        "A call by what its time depends on; "
                        "cost/local_call.h.")
      .def_readonly("key", &LocalCall::key)
      .def_readonly("family", &LocalCall::family)
      .def_readonly("operands", &LocalCall::operands)
      .def_readonly("form", &LocalCall::form)
      .def_readonly("work", &LocalCall::work)
      .def_readonly("random", &LocalCall::random);
}

}  // namespace

void bind_calls(py::module_& module) {
  bind_form(module);
  bind_emitted_call(module);
  bind_work(module);
  bind_local_call(module);
}

}  // namespace tensoropt
