// The steps of a reshard as the integers that the runtime operator takes.
//
//   EncodedProgram code = encode(path.steps, mesh, rank);
//   code.groups;   // axis sets; the caller finds one process group for each
//
// The integers are those of common/step_code.h; slots are numbered by first
// use, the index in a group is Mesh::index_in.
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/step.h"

namespace tensoropt {

struct EncodedProgram {
  std::vector<std::int64_t> steps;
  std::vector<AxisSet> groups;

  bool operator==(const EncodedProgram&) const = default;
};

EncodedProgram encode(const Steps& steps, const Mesh& mesh, int rank);

}  // namespace tensoropt
