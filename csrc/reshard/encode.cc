#include "reshard/encode.h"

#include <algorithm>

#include "common/check.h"
#include "reshard/moves.h"

namespace tensoropt {

namespace {

// The index of `axes` in `groups`, where it is added if it is new.
int slot_of(AxisSet axes, std::vector<AxisSet>& groups) {
  const auto found = std::find(groups.begin(), groups.end(), axes);
  const int slot = static_cast<int>(found - groups.begin());
  if (found == groups.end()) groups.push_back(axes);
  return slot;
}

// The sizes of the parts of a dim that `axes` cut inside of the axes that cut
// it otherwise, on this rank.
void append_parts(const Step& step, int dim, const TensorMeta& tensor,
                  const Layout& before, const Mesh& mesh, int rank,
                  std::vector<std::int64_t>& values) {
  const AxisSet outer = before.axes_sharding(dim) & ~step.axes;
  const std::int64_t unit = tensor.unit(dim);
  const std::int64_t count =
      range_of(tensor.shape[dim] / unit, outer, mesh, rank).size();
  for (const std::int64_t part : part_sizes(count, step.axes, mesh)) {
    values.push_back(part * unit);
  }
}

// What step_code.h says of steps where parts differ.
std::vector<std::int64_t> uneven_values(const Step& step,
                                        const TensorMeta& tensor,
                                        const Layout& before, const Mesh& mesh,
                                        int rank) {
  std::vector<std::int64_t> values{
      num_elements(local_shape(tensor, before, mesh))};
  for (const int dim : {step.dim, step.to_dim}) {
    if (dim >= 0) append_parts(step, dim, tensor, before, mesh, rank, values);
  }
  return values;
}

}  // namespace

EncodedProgram encode(const Steps& steps, const TensorMeta& tensor,
                      const Layout& from, const Mesh& mesh, int rank) {
  TO_CHECK(rank >= 0 && rank < mesh.num_devices(),
           "rank {} is not in a mesh of {} devices", rank, mesh.num_devices());
  const Shape counts = tensor.counts();
  EncodedProgram code;
  code.num_steps = static_cast<int>(steps.size());
  Layout layout = from;
  for (const Step& step : steps) {
    const Layout before = layout;
    layout = apply(step, before);
    const bool uneven =
        !divides(counts, before, mesh) || !divides(counts, layout, mesh);
    const int slot = is_local(step.kind) ? -1 : slot_of(step.axes, code.groups);
    const int kind = static_cast<int>(step.kind) | (uneven ? kUneven : 0);
    code.steps.insert(code.steps.end(), {kind, step.dim, step.to_dim, slot,
                                         mesh.size_of(step.axes),
                                         mesh.index_in(step.axes, rank)});
    if (!uneven) continue;
    const auto values = uneven_values(step, tensor, before, mesh, rank);
    code.steps.push_back(std::ssize(values));
    code.steps.insert(code.steps.end(), values.begin(), values.end());
  }
  return code;
}

}  // namespace tensoropt
