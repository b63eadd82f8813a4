// Ids as Python sees them: numbers, of which the stubs say of what.
#pragma once

#include <pybind11/pybind11.h>

#include "common/id.h"
#include "ir/graph.h"
#include "space/space.h"

namespace pybind11::detail {

template <typename IdType>
struct IdName;

template <>
struct IdName<tensoropt::NodeId> {
  static constexpr auto kName = const_name("tensoropt_torch._C.NodeId");
};

template <>
struct IdName<tensoropt::ValueId> {
  static constexpr auto kName = const_name("tensoropt_torch._C.ValueId");
};

template <>
struct IdName<tensoropt::SpaceNodeId> {
  static constexpr auto kName = const_name("tensoropt_torch._C.SpaceNodeId");
};

template <>
struct IdName<tensoropt::SpaceEdgeId> {
  static constexpr auto kName = const_name("tensoropt_torch._C.SpaceEdgeId");
};

template <typename Tag>
struct type_caster<tensoropt::Id<Tag>> {
  PYBIND11_TYPE_CASTER(tensoropt::Id<Tag>, IdName<tensoropt::Id<Tag>>::kName);

  bool load(handle source, bool convert) {
    make_caster<int> number;
    if (!number.load(source, convert)) return false;
    value = tensoropt::Id<Tag>(cast_op<int>(number));
    return true;
  }

  static handle cast(tensoropt::Id<Tag> id, return_value_policy, handle) {
    return PyLong_FromLong(id);
  }
};

}  // namespace pybind11::detail
