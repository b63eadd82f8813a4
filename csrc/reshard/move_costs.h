// Times of the moves of one tensor, and which axes may shard its dims.
//
//   MoveCosts costs(mesh, collectives, device, shape, item_size);
//   costs.fits(dim, axes);                  // sizes divide evenly
//   costs.time_ps(step, sharded_axes);      // whole picoseconds, at least 1
//
// All values are tabulated on construction: O(2^axes * axes) calls of the
// collective model; lookups are O(1).
#pragma once

#include <cstdint>
#include <vector>

#include "comm/collective.h"
#include "reshard/step.h"

namespace tensoropt {

class MoveCosts {
 public:
  MoveCosts(const Mesh& mesh, const CollectiveModel& collectives,
            const Device& device, const Shape& shape, int item_size);

  const Mesh& mesh() const { return mesh_; }
  int num_dims() const { return num_dims_; }

  // True if the axes together divide the dim evenly.
  bool fits(int dim, AxisSet axes) const {
    return fits_[(static_cast<std::size_t>(dim) << num_axes_) + axes] != 0;
  }

  // True if the layout divides the shape.
  bool fits(const Layout& layout) const;

  // The time of a step on a layout in which `sharded` are all axes that shard
  // some dim.
  std::int64_t time_ps(const Step& step, AxisSet sharded) const;

 private:
  void tabulate_fits(const Shape& shape);
  // Numbers the different counts of shards; returns them.
  std::vector<int> tabulate_shards();

  std::int64_t collective_ps(StepKind kind, AxisSet axes,
                             AxisSet sharded) const {
    const std::size_t row =
        (static_cast<std::size_t>(kind) << num_axes_) + axes;
    return collective_ps_[row * copy_ps_.size() + shards_index_[sharded]];
  }
  std::int64_t copy_ps(AxisSet sharded) const {
    return copy_ps_[shards_index_[sharded]];
  }

  Mesh mesh_;
  int num_axes_;
  int num_dims_;
  std::vector<char> fits_;  // by dim and axis set
  // By axis set: which of the counts of shards it makes.
  std::vector<std::uint16_t> shards_index_;
  std::vector<std::int64_t> collective_ps_;  // by kind, axis set, shards index
  std::vector<std::int64_t> copy_ps_;        // by shards index
};

}  // namespace tensoropt
