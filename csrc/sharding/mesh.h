// The base mesh: all devices of a job, with one mesh axis per prime factor of
// their number, outermost (between machines) to innermost (inside a machine).
//
//   Mesh mesh({{2, 0}, {2, 1}, {2, 1}, {2, 1}});   // 2 machines x 8 devices
//   mesh.num_devices();                            // 16
//   mesh.coordinate(5, 1);                         // position of rank 5 on
//   axis 1
//
// A rank is the lexicographic index of its coordinates (axis 0 most
// significant). The mesh of the paper that each operator has for itself is a
// grouping of these axes.
#pragma once

#include <cstdint>
#include <vector>

namespace tensoropt {

// One factor of the device count. `level` is the index of the cluster level
// (0 = outermost) whose links connect neighbours along the axis.
struct MeshAxis {
  int size = 1;
  int level = 0;

  bool operator==(const MeshAxis&) const = default;
};

// A set of mesh axes, as a bit mask.
using AxisSet = std::uint32_t;

class Mesh {
 public:
  static constexpr int kMaxAxes = 16;

  // Throws UserError for more than kMaxAxes axes, sizes below 2 or levels that
  // decrease from one axis to the next.
  explicit Mesh(std::vector<MeshAxis> axes);

  int num_axes() const { return static_cast<int>(axes_.size()); }
  int num_devices() const { return num_devices_; }
  const std::vector<MeshAxis>& axes() const { return axes_; }
  int size(int axis) const { return axes_[axis].size; }

  // Position of `rank` along `axis`.
  int coordinate(int rank, int axis) const;

  // The product of the sizes of the axes in the set.
  int size_of(AxisSet set) const;

  // Position of `rank` in its group along the axes of the set, the first axis
  // most significant.
  int index_in(AxisSet set, int rank) const;

  // The ranks that differ from `rank` along the axes of the set only,
  // ascending: the process group of a collective over these axes.
  std::vector<int> group_of(AxisSet set, int rank) const;

  // True if swapping the two axes changes no cost (same size, same level).
  bool alike(int axis, int other) const { return axes_[axis] == axes_[other]; }

  // The set of the first axes alike to those of `set`: equal for sets over
  // which collectives cost the same.
  AxisSet canonical(AxisSet set) const;

 private:
  std::vector<MeshAxis> axes_;
  std::vector<int> strides_;
  int num_devices_ = 1;
};

}  // namespace tensoropt
