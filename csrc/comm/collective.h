// Times of collectives over sets of mesh axes.
//
//   AnalyticCollectives analytic(cluster, mesh);
//   analytic.time_s(Collective::kAllReduce, /*axes=*/0b01, 4e6);
//   MeasuredCollectives measured(mesh, table, analytic);
//   DelayedCollectives in_steps(measured, /*delay_s=*/5e-4);
//   BucketedCollectives together(in_steps, {Collective::kAllReduce},
//                                /*bucket_bytes=*/1 << 22);
//
// The time is that of one group while ALL groups over the same axes are active
// at once, as they are in a training step: the groups of one machine share its
// network card. `bytes` is the larger of one rank's input and output:
//   all_gather      its output
//   reduce_scatter  its input
//   others          the tensor (all_to_all: what one rank holds)
// All models are monotone in `bytes`, give 0 for an empty axis set, and may be
// called from several threads.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/cluster.h"
#include "sharding/collective_kind.h"
#include "sharding/mesh.h"

namespace tensoropt {

// "all_reduce" for Collective::kAllReduce.
std::string_view to_string(Collective collective);

class CollectiveModel {
 public:
  virtual ~CollectiveModel() = default;
  virtual double time_s(Collective collective, AxisSet axes,
                        double bytes) const = 0;
};

// Times from a description of the cluster: the better of one flat ring and one
// ring per mesh axis after the other (pairwise exchange for all_to_all, a
// pipelined chain for broadcast).
//
// Model, for a group of g ranks, G_l of them inside one unit of level l:
//  - every link that a byte passes on its way counts, from the device's own
//    link out to the outermost level that the group spans;
//  - contention: the link of one unit carries all groups of that unit;
//  - latency: one message of the outermost level crossed per ring step.
// Bandwidth and latency are those of the collective (Level::speed_of). A
// level's latency is at least that of the levels inside it, so a group inside
// a machine is never slower than the same group across machines.
// Complexity: O(levels^2) per call.
class AnalyticCollectives : public CollectiveModel {
 public:
  // Throws UserError if the mesh is not that of a cluster with these levels.
  AnalyticCollectives(const Cluster& cluster, const Mesh& mesh);

  double time_s(Collective collective, AxisSet axes,
                double bytes) const override;

 private:
  struct Link {
    double bandwidth_bytes_per_s;
    double latency_s;
    int devices_per_unit;
  };
  using Links = std::vector<Link>;  // by level
  // How a group lies in the cluster.
  struct Span {
    std::vector<int> ranks;   // per level: units of it that one group joins
    std::vector<int> inside;  // per level: ranks inside one unit of it
    std::vector<int> hops;    // per level: ring steps, axis after axis
    int size = 1;
    int outermost = 0;  // the outermost level that the group crosses
  };

  static double ring_time_s(const Span& span, const Links& links, double bytes);
  static double hierarchy_time_s(const Span& span, const Links& links,
                                 double bytes);
  static double all_to_all_time_s(const Span& span, const Links& links,
                                  double bytes);
  static double broadcast_time_s(const Span& span, const Links& links,
                                 double bytes);

  static Links links_of(const Cluster& cluster, Collective collective);

  std::array<Links, kNumCollectives> links_;
  std::vector<Span> spans_;  // by axis set
};

// One measurement.
struct CollectiveSample {
  double bytes = 0;
  double time_s = 0;
};
using CollectiveTable =
    std::map<std::pair<Collective, AxisSet>, std::vector<CollectiveSample>>;

// Times from measurements, straight lines between samples in log-log scale.
// Beyond the last sample the bandwidth of the last two goes on, below the
// first one that of the first two. Samples are made monotone (a larger message
// is never faster): where they fall, neighbours share their median. An axis set
// without an entry uses that of a set of alike axes (Mesh::alike), else the
// fallback. Complexity: O(log samples) per call.
class MeasuredCollectives : public CollectiveModel {
 public:
  // Keeps a reference to `fallback`, which must outlive this object. Throws
  // UserError for an entry without samples, sizes or times that are not
  // positive, equal sizes, or axes that the mesh does not have.
  MeasuredCollectives(const Mesh& mesh, const CollectiveTable& table,
                      const CollectiveModel& fallback);

  double time_s(Collective collective, AxisSet axes,
                double bytes) const override;

  // True if the time comes from measurements.
  bool is_measured(Collective collective, AxisSet axes) const {
    return curve_of(collective, axes) >= 0;
  }

 private:
  using Curve = std::vector<CollectiveSample>;

  int curve_of(Collective collective, AxisSet axes) const {
    return curve_of_[static_cast<int>(collective)][axes];
  }

  const CollectiveModel& fallback_;
  std::vector<Curve> curves_;
  // By collective and axis set: index into curves_, -1 for the fallback.
  std::vector<std::vector<int>> curve_of_;
};

// Adds a delay to the time of every collective, of any size: in a training
// step ranks wait for the last one. A negative delay makes it faster, down to a
// quarter: threads that move data may be awake already.
class DelayedCollectives : public CollectiveModel {
 public:
  // Keeps a reference to `model`. Throws UserError unless the delay is finite.
  DelayedCollectives(const CollectiveModel& model, double delay_s);

  double time_s(Collective collective, AxisSet axes,
                double bytes) const override;

 private:
  const CollectiveModel& model_;
  double delay_s_;
};

// Collectives of some kinds share buckets of so many bytes: a smaller one takes
// its share of the time of a bucket.
class BucketedCollectives : public CollectiveModel {
 public:
  // Keeps a reference to `model`. Throws UserError for a negative size.
  BucketedCollectives(const CollectiveModel& model, std::set<Collective> kinds,
                      double bucket_bytes);

  double time_s(Collective collective, AxisSet axes,
                double bytes) const override;

 private:
  const CollectiveModel& model_;
  std::set<Collective> kinds_;
  double bucket_bytes_;
};

}  // namespace tensoropt
