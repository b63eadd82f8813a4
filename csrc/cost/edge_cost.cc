#include "cost/edge_cost.h"

namespace tensoropt {

std::string_view to_string(Reuse reuse) {
  constexpr std::array<std::string_view, 4> kNames = {"none", "before", "after",
                                                      "both"};
  return kNames[static_cast<std::size_t>(reuse)];
}

EdgeOptions edge_options(const EdgeSpec& edge, const Mesh& mesh,
                         const SharedResharder& values,
                         const SharedResharder& gradients, const Port& from,
                         const Port& to) {
  const auto time_of = [&](const SharedResharder& resharder,
                           const Layout& before, const Layout& after,
                           double exposed) {
    if (before == after) return 0.0;
    return edge.overhead_s + exposed * resharder.time_s(before, after);
  };
  const double backward_s = edge.backward
                                ? time_of(gradients, to.gradient, from.gradient,
                                          edge.backward_exposed)
                                : 0;
  const double time_s =
      time_of(values, from.value, to.value, edge.forward_exposed) + backward_s;
  EdgeOptions options;
  if (!edge.consumer_saves) {
    options.add({0, time_s, Reuse::kNone});
    return options;
  }
  const double bytes_after = local_bytes(edge.meta, to.value, mesh);
  if (from.value == to.value) {
    const bool same = edge.producer_keeps && !edge.cast_from;
    options.add({same ? 0 : bytes_after, time_s, Reuse::kNone});
    return options;
  }
  TensorMeta before = edge.meta;
  before.dtype = edge.cast_from.value_or(before.dtype);
  const double bytes_before =
      edge.producer_keeps ? 0 : local_bytes(before, from.value, mesh);
  if (edge.may_keep) {
    options.add({bytes_after, time_s,
                 edge.producer_keeps ? Reuse::kBoth : Reuse::kAfter});
  }
  if (edge.may_replay && bytes_before < bytes_after) {
    const double replay_s = time_of(values, from.value, to.value, 1);
    options.add({bytes_before, time_s + replay_s, Reuse::kBefore});
  }
  return options;
}

}  // namespace tensoropt
