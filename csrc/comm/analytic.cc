#include <algorithm>

#include "comm/collective.h"
#include "common/check.h"

namespace tensoropt {

namespace {

// The product of the sizes of the axes of `set` that belong to `level`.
int size_at_level(const Mesh& mesh, AxisSet set, int level) {
  int size = 1;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const MeshAxis& mesh_axis = mesh.axes()[axis];
    if ((set >> axis & 1) && mesh_axis.level == level) size *= mesh_axis.size;
  }
  return size;
}

// The steps of rings along these axes, one axis after the other.
int hops_at_level(const Mesh& mesh, AxisSet set, int level) {
  int hops = 0;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const MeshAxis& mesh_axis = mesh.axes()[axis];
    if ((set >> axis & 1) && mesh_axis.level == level) {
      hops += mesh_axis.size - 1;
    }
  }
  return hops;
}

void check_mesh(const Cluster& cluster, const Mesh& mesh) {
  const AxisSet all = (AxisSet{1} << mesh.num_axes()) - 1;
  for (const MeshAxis& axis : mesh.axes()) {
    TO_CHECK(axis.level < static_cast<int>(cluster.levels.size()),
             "a mesh axis is at level {}, but cluster '{}' has {} levels",
             axis.level, cluster.name, cluster.levels.size());
  }
  for (std::size_t level = 0; level < cluster.levels.size(); ++level) {
    const int size = size_at_level(mesh, all, static_cast<int>(level));
    TO_CHECK(size == cluster.levels[level].count,
             "the mesh has {} units at level '{}', cluster '{}' has {}", size,
             cluster.levels[level].name, cluster.name,
             cluster.levels[level].count);
  }
}

}  // namespace

AnalyticCollectives::Links AnalyticCollectives::links_of(
    const Cluster& cluster, Collective collective) {
  Links links(cluster.levels.size());
  double latency_s = 0;
  for (int level = static_cast<int>(links.size()) - 1; level >= 0; --level) {
    const LinkSpeed speed = cluster.levels[level].speed_of(collective);
    latency_s = std::max(latency_s, speed.latency_s);
    links[level] = {speed.bandwidth_bytes_per_s, latency_s,
                    cluster.devices_per_unit(level)};
  }
  return links;
}

AnalyticCollectives::AnalyticCollectives(const Cluster& cluster,
                                         const Mesh& mesh) {
  validate(cluster);
  check_mesh(cluster, mesh);
  for (int i = 0; i < kNumCollectives; ++i) {
    links_[i] = links_of(cluster, static_cast<Collective>(i));
  }
  const int num_levels = static_cast<int>(cluster.levels.size());
  for (AxisSet set = 0; set >> mesh.num_axes() == 0; ++set) {
    Span& span = spans_.emplace_back();
    span.inside.assign(num_levels, 1);
    for (int level = 0; level < num_levels; ++level) {
      span.ranks.push_back(size_at_level(mesh, set, level));
      span.hops.push_back(hops_at_level(mesh, set, level));
    }
    for (int level = num_levels - 1; level >= 0; --level) {
      span.inside[level] = span.size;
      span.size *= span.ranks[level];
      if (span.ranks[level] > 1) span.outermost = level;
    }
  }
}

double AnalyticCollectives::time_s(Collective collective, AxisSet axes,
                                   double bytes) const {
  TO_ASSERT(axes < spans_.size(), "axis set {:b} is not in the mesh", axes);
  const Span& span = spans_[axes];
  if (span.size == 1) return 0;
  const Links& links = links_[static_cast<int>(collective)];
  const double one_pass = std::min(ring_time_s(span, links, bytes),
                                   hierarchy_time_s(span, links, bytes));
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      return one_pass;
    case Collective::kAllReduce:  // a reduce-scatter, then an all-gather
      return 2 * one_pass;
    case Collective::kAllToAll:
      return all_to_all_time_s(span, links, bytes);
    case Collective::kBroadcast:
      return broadcast_time_s(span, links, bytes);
  }
  TO_ASSERT(false, "collective {}", static_cast<int>(collective));
}

// Each of the g - 1 steps sends 1/g of the bytes to the next rank. Ranks are in
// mesh order, so every unit has one ring edge out of it per group.
double AnalyticCollectives::ring_time_s(const Span& span, const Links& links,
                                        double bytes) {
  const double sent = bytes * (span.size - 1) / span.size;
  double transfer_s = 0;
  for (std::size_t level = span.outermost; level < links.size(); ++level) {
    const Link& link = links[level];
    const double groups =
        static_cast<double>(link.devices_per_unit) / span.inside[level];
    transfer_s =
        std::max(transfer_s, groups * sent / link.bandwidth_bytes_per_s);
  }
  return transfer_s + (span.size - 1) * links[span.outermost].latency_s;
}

// One ring per mesh axis, one axis after the other (recursive halving where the
// sizes are 2). The rings of level l are run with 1/inside[l] of the bytes, by
// all devices at once.
double AnalyticCollectives::hierarchy_time_s(const Span& span,
                                             const Links& links, double bytes) {
  double total_s = 0;
  for (std::size_t level = 0; level < links.size(); ++level) {
    const int ranks = span.ranks[level];
    if (ranks == 1) continue;
    const double sent = bytes / span.inside[level] * (ranks - 1) / ranks;
    double transfer_s = 0;
    for (std::size_t inner = level; inner < links.size(); ++inner) {
      const Link& link = links[inner];
      transfer_s = std::max(transfer_s, link.devices_per_unit * sent /
                                            link.bandwidth_bytes_per_s);
    }
    total_s += transfer_s + span.hops[level] * links[level].latency_s;
  }
  return total_s;
}

// A rank sends 1/g of its bytes to each other rank; what leaves a unit passes
// its link, whichever level it goes to.
double AnalyticCollectives::all_to_all_time_s(const Span& span,
                                              const Links& links,
                                              double bytes) {
  double transfer_s = 0;
  double latency_s = 0;
  for (std::size_t level = span.outermost; level < links.size(); ++level) {
    const Link& link = links[level];
    const int outside = span.size - span.inside[level];
    const double leaving = link.devices_per_unit * bytes * outside / span.size;
    transfer_s = std::max(transfer_s, leaving / link.bandwidth_bytes_per_s);
    latency_s += (span.ranks[level] - 1) * span.inside[level] * link.latency_s;
  }
  return transfer_s + latency_s;
}

// A pipelined chain through the ranks.
double AnalyticCollectives::broadcast_time_s(const Span& span,
                                             const Links& links, double bytes) {
  double transfer_s = 0;
  for (std::size_t level = span.outermost; level < links.size(); ++level) {
    const Link& link = links[level];
    const double groups =
        static_cast<double>(link.devices_per_unit) / span.inside[level];
    transfer_s =
        std::max(transfer_s, groups * bytes / link.bandwidth_bytes_per_s);
  }
  return transfer_s + (span.size - 1) * links[span.outermost].latency_s;
}

}  // namespace tensoropt
