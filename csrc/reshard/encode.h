// The steps of a reshard as the integers that the runtime operator takes.
//
//   EncodedProgram code = encode(path.steps, shape, from, mesh, rank);
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
  int num_steps = 0;

  // What the first step does. Requires one.
  StepKind first_kind() const {
    return static_cast<StepKind>(steps[0] & ~kUneven);
  }
  // Whether parts of the tensor differ in size at the first step.
  bool is_uneven() const { return (steps[0] & kUneven) != 0; }

  bool operator==(const EncodedProgram&) const = default;
};

// The steps start from a tensor in layout `from`.
EncodedProgram encode(const Steps& steps, const TensorMeta& tensor,
                      const Layout& from, const Mesh& mesh, int rank);

}  // namespace tensoropt
