// A reshard program as the integers that the runtime operator takes.
//
//   EncodedProgram code = encode(path.program, mesh, rank);
//   code.groups;   // axis sets; the caller finds one process group for each
//
// Six integers per step: kind, dim, to_dim, group slot (an index into `groups`,
// -1 for local steps), size of the group, index of this rank in its group
// (Mesh::index_in). Slots are numbered by first use.
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/step.h"

namespace tensoropt {

inline constexpr int kIntsPerStep = 6;

struct EncodedProgram {
  std::vector<std::int64_t> steps;
  std::vector<AxisSet> groups;

  bool operator==(const EncodedProgram&) const = default;
};

EncodedProgram encode(const Program& program, const Mesh& mesh, int rank);

}  // namespace tensoropt
