// Arguments of calls between Python and C++.
#pragma once

#include <pybind11/pybind11.h>

#include "ir/graph.h"

namespace tensoropt {

// None, bool, int, float, str, lists of numbers; Ref; lists of Refs and None.
Argument argument_of(const pybind11::handle& object);

// The other way round, without Refs.
pybind11::object literal_object(const Literal& literal);

}  // namespace tensoropt
