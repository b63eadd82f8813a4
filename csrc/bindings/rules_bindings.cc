// Rules: those that come with the library, and those that users declare.

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "bindings/bindings.h"
#include "bindings/literals.h"
#include "bindings/rules.h"
#include "common/check.h"
#include "rules/rule_book.h"

namespace py = pybind11;

namespace tensoropt {

namespace {

// One for the process, as operators are. Never destroyed: it may hold Python
// functions, which must not outlive the interpreter.
RuleBook& rule_book() {
  static auto* book = new RuleBook();
  return *book;
}

py::dict literals_of(const Node& node) {
  py::dict literals;
  for (const NamedArgument& argument : node.arguments) {
    if (const auto* literal = std::get_if<Literal>(&argument.value)) {
      literals[py::str(argument.name)] = literal_object(*literal);
    }
  }
  return literals;
}

using Literals = py::typing::Dict<py::str, py::object>;
using Numbers = py::typing::Dict<py::str, py::int_>;
using LocalFunctionInPython =
    py::typing::Callable<Literals(Literals, Numbers, Numbers)>;

// `function(arguments, parts, part)` returns literals by name.
std::vector<NamedArgument> call_local(const py::function& function,
                                      const FactorParts& call) {
  const auto literals =
      function(literals_of(call.node), call.parts, call.part).cast<py::dict>();
  std::vector<NamedArgument> result;
  for (const auto& [name, value] : literals) {
    NamedArgument named{name.cast<std::string>(), argument_of(value)};
    TO_CHECK(call.node.find(named.name),
             "'{}': local= of the rule of {} returns '{}', which is no literal "
             "argument of the call",
             call.node.name, call.node.target, named.name);
    result.push_back(std::move(named));
  }
  return result;
}

std::string declaration_of(const Rules& rules, const std::string& target) {
  const OpDefinition* definition = rules.registry->find(target);
  return definition ? definition->declaration : "";
}

}  // namespace

void bind_rules(py::module_& module) {
  py::class_<DeclaredRule>(module, "DeclaredRule",
                           "A user's rule as data; "
                           "csrc/rules/declared_rule.h.")
      .def(py::init([](std::string target, const std::string& pattern,
                       std::vector<std::string> tensors) {
             return DeclaredRule{std::move(target), parse_pattern(pattern),
                                 std::move(tensors)};
           }),
           py::arg("target"), py::arg("pattern"), py::arg("tensors"))
      .def_readwrite("linear_in", &DeclaredRule::linear_in)
      .def_readwrite("additive", &DeclaredRule::additive)
      .def_readwrite("saves", &DeclaredRule::saves)
      .def_readwrite("saves_outputs", &DeclaredRule::saves_outputs)
      .def_readwrite("mean", &DeclaredRule::mean)
      .def_readwrite("sizes", &DeclaredRule::sizes)
      .def_readwrite("flops_per_element", &DeclaredRule::flops_per_element)
      .def_readwrite("flops", &DeclaredRule::flops)
      .def_readwrite("random", &DeclaredRule::random)
      .def_readwrite("repeatable", &DeclaredRule::repeatable)
      .def_readwrite("functions", &DeclaredRule::functions)
      .def("set_local",
           [](DeclaredRule& self, const LocalFunctionInPython& function) {
             self.local = [function](const FactorParts& call) {
               return call_local(function, call);
             };
           });

  py::class_<Rules>(module, "Rules",
                    "The operators that had a rule at some time.")
      .def("targets",
           [](const Rules& self) { return self.registry->targets(); })
      .def("declaration", &declaration_of, py::arg("target"),
           "What a user declared; empty if the operator came with its rule.");

  module.def("declare_rule", [](const DeclaredRule& declared) {
    rule_book().declare(declared);
  });
  module.def("withdraw_rule",
             [](const std::string& target) { rule_book().withdraw(target); });
  module.def(
      "current_rules", [] { return Rules{rule_book().registry()}; },
      "All operators that have a rule now.");
}

}  // namespace tensoropt
