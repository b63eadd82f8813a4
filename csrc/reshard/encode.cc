#include "reshard/encode.h"

#include <algorithm>

#include "common/check.h"

namespace tensoropt {

namespace {

// The index of `axes` in `groups`, where it is added if it is new.
int slot_of(AxisSet axes, std::vector<AxisSet>& groups) {
  const auto found = std::find(groups.begin(), groups.end(), axes);
  const int slot = static_cast<int>(found - groups.begin());
  if (found == groups.end()) groups.push_back(axes);
  return slot;
}

}  // namespace

EncodedProgram encode(const Steps& steps, const Mesh& mesh, int rank) {
  TO_CHECK(rank >= 0 && rank < mesh.num_devices(),
           "rank {} is not in a mesh of {} devices", rank, mesh.num_devices());
  EncodedProgram code;
  for (const Step& step : steps) {
    const int slot = is_local(step.kind) ? -1 : slot_of(step.axes, code.groups);
    code.steps.insert(
        code.steps.end(),
        {static_cast<int>(step.kind), step.dim, step.to_dim, slot,
         mesh.size_of(step.axes), mesh.index_in(step.axes, rank)});
  }
  return code;
}

}  // namespace tensoropt
