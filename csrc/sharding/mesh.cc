#include "sharding/mesh.h"

#include "common/check.h"

namespace tensoropt {

Mesh::Mesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  TO_CHECK(axes_.size() <= kMaxAxes,
           "a mesh has at most {} axes, got {}; use fewer devices", kMaxAxes,
           axes_.size());
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    TO_CHECK(axes_[i].size >= 2, "mesh axis {} has size {}, must be >= 2", i,
             axes_[i].size);
    TO_CHECK(i == 0 || axes_[i].level >= axes_[i - 1].level,
             "mesh axes must go from outer to inner levels, got level {} after "
             "level {}",
             axes_[i].level, axes_[i - 1].level);
    num_devices_ *= axes_[i].size;
  }
  strides_.assign(axes_.size(), 1);
  for (int i = num_axes() - 2; i >= 0; --i) {
    strides_[i] = strides_[i + 1] * axes_[i + 1].size;
  }
}

int Mesh::coordinate(int rank, int axis) const {
  return rank / strides_[axis] % axes_[axis].size;
}

int Mesh::size_of(AxisSet set) const {
  int size = 1;
  for (int axis = 0; axis < num_axes(); ++axis) {
    if (set >> axis & 1) size *= axes_[axis].size;
  }
  return size;
}

int Mesh::index_in(AxisSet set, int rank) const {
  int index = 0;
  for (int axis = 0; axis < num_axes(); ++axis) {
    if (set >> axis & 1) {
      index = index * axes_[axis].size + coordinate(rank, axis);
    }
  }
  return index;
}

std::vector<int> Mesh::group_of(AxisSet set, int rank) const {
  int base = rank;
  for (int axis = 0; axis < num_axes(); ++axis) {
    if (set >> axis & 1) base -= coordinate(rank, axis) * strides_[axis];
  }
  std::vector<int> ranks{base};
  for (int axis = 0; axis < num_axes(); ++axis) {
    if (!(set >> axis & 1)) continue;
    std::vector<int> wider;
    for (const int start : ranks) {
      for (int i = 0; i < axes_[axis].size; ++i) {
        wider.push_back(start + i * strides_[axis]);
      }
    }
    ranks = std::move(wider);
  }
  return ranks;
}

AxisSet Mesh::canonical(AxisSet set) const {
  AxisSet result = 0;
  for (int axis = 0; axis < num_axes(); ++axis) {
    if (!(set >> axis & 1)) continue;
    int first = 0;
    while (!alike(first, axis) || (result >> first & 1)) ++first;
    result |= AxisSet{1} << first;
  }
  return result;
}

}  // namespace tensoropt
