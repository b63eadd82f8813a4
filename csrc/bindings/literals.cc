#include "bindings/literals.h"

#include <pybind11/stl.h>

#include <optional>

namespace py = pybind11;

namespace tensoropt {

namespace {

// Nothing if the list has no Ref; None is a hole.
std::optional<std::vector<ValueRef>> refs_of(const py::list& list) {
  std::vector<ValueRef> refs;
  bool any = false;
  for (const py::handle item : list) {
    if (!item.is_none() && !py::isinstance<ValueRef>(item)) return {};
    any = any || !item.is_none();
    refs.push_back(item.is_none() ? ValueRef{} : item.cast<ValueRef>());
  }
  if (!any) return {};
  return refs;
}

}  // namespace

Argument argument_of(const py::handle& object) {
  if (py::isinstance<ValueRef>(object)) return object.cast<ValueRef>();
  if (object.is_none()) return Literal{};
  if (py::isinstance<py::bool_>(object)) return Literal{object.cast<bool>()};
  if (py::isinstance<py::int_>(object)) {
    return Literal{object.cast<std::int64_t>()};
  }
  if (py::isinstance<py::float_>(object)) {
    return Literal{object.cast<double>()};
  }
  if (py::isinstance<py::str>(object)) {
    return Literal{object.cast<std::string>()};
  }
  const auto list = object.cast<py::list>();
  if (auto refs = refs_of(list)) return *std::move(refs);
  for (const py::handle item : list) {
    if (py::isinstance<py::float_>(item)) {
      return Literal{object.cast<std::vector<double>>()};
    }
  }
  return Literal{object.cast<std::vector<std::int64_t>>()};
}

py::object literal_object(const Literal& literal) {
  return std::visit(
      [](const auto& value) -> py::object {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate>)
          return py::none();
        else
          return py::cast(value);
      },
      literal);
}

}  // namespace tensoropt
