// Times of the moves of one tensor, and which axes may shard its dims.
//
//   MoveCosts costs(mesh, collectives, device, shape, item_size);
//   costs.fits(dim, axes);                  // sizes divide evenly
//   costs.time_ps(step, sharded_axes);      // whole picoseconds, at least 1
//   costs.excess(axes_by_code(layout));     // 1 where all parts are equal
//
// Times are those of equal parts. Where parts differ, the largest one takes
// longer by its excess.
//
// All values are tabulated on construction: O(2^axes * axes) calls of the
// collective model; lookups are O(1).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/collective.h"
#include "reshard/step.h"

namespace tensoropt {

class MoveCosts {
 public:
  // `uneven` dims may be split into parts that differ, none of them empty.
  MoveCosts(const Mesh& mesh, const CollectiveModel& collectives,
            const Device& device, const Shape& shape, std::int64_t item_size,
            DimSet uneven = 0);

  const Mesh& mesh() const { return mesh_; }
  int num_dims() const { return num_dims_; }
  bool is_even() const { return uneven_ == 0; }

  // True if the axes together may split the dim.
  bool fits(int dim, AxisSet axes) const {
    return fits_[(static_cast<std::size_t>(dim) << num_axes_) + axes] != 0;
  }

  bool fits(const Layout& layout) const;

  // By how much the largest part of the tensor exceeds an equal one, where
  // these axes split each dim (by placement code).
  double excess(const std::array<AxisSet, 16>& axes) const;

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
  DimSet uneven_;
  std::vector<char> fits_;      // by dim and axis set
  std::vector<double> excess_;  // likewise
  // By axis set: which of the counts of shards it makes.
  std::vector<std::uint16_t> shards_index_;
  std::vector<std::int64_t> collective_ps_;  // by kind, axis set, shards index
  std::vector<std::int64_t> copy_ps_;        // by shards index
};

}  // namespace tensoropt
