#include "reshard/move_costs.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/check.h"
#include "reshard/moves.h"

namespace tensoropt {

namespace {

// The collectives of the step kinds, in the order of StepKind.
constexpr std::array<Collective, 4> kCollectives{
    Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce,
    Collective::kAllToAll};

std::int64_t to_picoseconds(double time_s) {
  constexpr double kLongest_s = 1e5;  // sums of steps must not overflow
  TO_CHECK(time_s >= 0, "the model of collectives gave {} s", time_s);
  const double ps = std::ceil(std::min(time_s, kLongest_s) * 1e12);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(ps));
}

}  // namespace

MoveCosts::MoveCosts(const Mesh& mesh, const CollectiveModel& collectives,
                     const Device& device, const Shape& shape,
                     std::int64_t item_size, DimSet uneven)
    : mesh_(mesh),
      num_axes_(mesh.num_axes()),
      num_dims_(static_cast<int>(shape.size())),
      uneven_(uneven) {
  TO_CHECK(num_dims_ <= Placement::kMaxDim + 1,
           "a tensor has at most {} dims, got {}", Placement::kMaxDim + 1,
           num_dims_);
  tabulate_fits(shape);
  const std::vector<int> shards = tabulate_shards();
  const double bytes =
      static_cast<double>(num_elements(shape)) * static_cast<double>(item_size);
  for (const int count : shards) {  // a copy reads and writes
    copy_ps_.push_back(to_picoseconds(device.memory_time_s(2 * bytes / count)));
  }
  for (const Collective collective : kCollectives) {
    for (AxisSet axes = 0; axes >> num_axes_ == 0; ++axes) {
      for (const int count : shards) {
        // Of a tensor without elements nothing is sent.
        collective_ps_.push_back(to_picoseconds(
            bytes > 0 ? collectives.time_s(collective, axes, bytes / count)
                      : 0));
      }
    }
  }
}

void MoveCosts::tabulate_fits(const Shape& shape) {
  fits_.reserve(shape.size() << num_axes_);
  excess_.reserve(shape.size() << num_axes_);
  for (int dim = 0; dim < num_dims_; ++dim) {
    const std::int64_t size = shape[dim];
    for (AxisSet axes = 0; axes >> num_axes_ == 0; ++axes) {
      const int parts = mesh_.size_of(axes);
      const bool even = splits_evenly(size, parts);
      fits_.push_back(even || ((uneven_ >> dim & 1) != 0 &&
                               !has_empty_part(size, axes, mesh_)));
      const auto largest = static_cast<double>(largest_part(size, parts));
      excess_.push_back(even ? 1 : largest * parts / static_cast<double>(size));
    }
  }
}

double MoveCosts::excess(const std::array<AxisSet, 16>& axes) const {
  double excess = 1;
  for (int dim = 0; dim < num_dims_; ++dim) {
    const AxisSet set = axes[Placement::shard(dim).code()];
    excess *= excess_[(static_cast<std::size_t>(dim) << num_axes_) + set];
  }
  return excess;
}

std::vector<int> MoveCosts::tabulate_shards() {
  std::vector<int> counts;
  for (AxisSet axes = 0; axes >> num_axes_ == 0; ++axes) {
    counts.push_back(mesh_.size_of(axes));
  }
  std::vector<int> distinct = counts;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  for (const int count : counts) {
    const auto at = std::lower_bound(distinct.begin(), distinct.end(), count);
    shards_index_.push_back(static_cast<std::uint16_t>(at - distinct.begin()));
  }
  return distinct;
}

bool MoveCosts::fits(const Layout& layout) const {
  const std::array<AxisSet, 16> axes = axes_by_code(layout);
  for (int code = Placement::shard(0).code(); code < 16; ++code) {
    const int dim = Placement::from_code(code).dim();
    if (axes[code] == 0) continue;
    if (dim >= num_dims_ || !fits(dim, axes[code])) return false;
  }
  return true;
}

std::int64_t MoveCosts::time_ps(const Step& step, AxisSet sharded) const {
  const AxisSet gathered = sharded & ~step.axes;
  switch (step.kind) {
    case StepKind::kAllGather:  // pieces arrive one after the other
      return collective_ps(step.kind, step.axes, gathered) +
             (step.dim > 0 ? copy_ps(gathered) : 0);
    case StepKind::kReduceScatter:
      return collective_ps(step.kind, step.axes, sharded) +
             (step.dim > 0 ? copy_ps(sharded) : 0);
    case StepKind::kAllReduce:
      return collective_ps(step.kind, step.axes, sharded);
    case StepKind::kAllToAll:
      return collective_ps(step.kind, step.axes, sharded) +
             (step.dim > 0 ? copy_ps(sharded) : 0) +
             (step.to_dim > 0 ? copy_ps(sharded) : 0);
    case StepKind::kSlice:
      return copy_ps(sharded | step.axes);
    case StepKind::kMask:
      return copy_ps(sharded);
  }
  TO_ASSERT(false, "step kind {}", static_cast<int>(step.kind));
}

}  // namespace tensoropt
