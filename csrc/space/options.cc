#include "space/options.h"

#include "common/check.h"

namespace tensoropt {

int shared_dim(const Graph& graph, const Node& node,
               const SpaceOptions& options) {
  if (node.kind != NodeKind::kInput || !options.sharded_inputs ||
      options.whole_inputs.contains(node.name)) {
    return -1;
  }
  const int rank = graph.output(node, 0).meta.rank();
  const auto named = options.input_dims.find(node.name);
  if (named == options.input_dims.end()) return rank > 0 ? 0 : -1;
  TO_CHECK(named->second >= 0 && named->second < rank,
           "input '{}' of shape [{}] has no dim {}, in which inputs= says that "
           "it has its rows; name one of its {} dims, or 'replicated'",
           node.name, str_join(graph.output(node, 0).meta.shape, ", "),
           named->second, rank);
  return named->second;
}

Layout share_of_rows(int dim, const Mesh& mesh, const SpaceOptions& options) {
  Layout layout = Layout::replicated(mesh.num_axes());
  const int axes = options.row_axes.value_or(mesh.num_axes());
  TO_CHECK(axes >= 0 && axes <= mesh.num_axes(),
           "row_axes = {}: the mesh has {} axes", axes, mesh.num_axes());
  for (int axis = 0; axis < axes; ++axis) {
    layout.set(axis, Placement::shard(dim));
  }
  return layout;
}

}  // namespace tensoropt
