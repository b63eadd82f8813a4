#include "sharding/layout.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "common/check.h"

namespace tensoropt {

namespace {

Placement parse_placement(std::string_view text) {
  if (text == "R") return Placement::replicate();
  if (text == "P") return Placement::partial();
  const bool shard = text.size() >= 2 && text.front() == 'S' &&
                     text.find_first_not_of("0123456789", 1) == text.npos;
  TO_CHECK(shard, "placement '{}' is not R, P or S followed by a tensor dim",
           text);
  int dim = 0;  // stays where the number is larger than an int
  const auto [end, error] =
      std::from_chars(text.data() + 1, text.data() + text.size(), dim);
  TO_CHECK(error == std::errc() && dim <= Placement::kMaxDim,
           "placement '{}': dim must be <= {}", text, Placement::kMaxDim);
  return Placement::shard(dim);
}

}  // namespace

Layout Layout::parse(std::string_view text) {
  std::vector<Placement> placements;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    placements.push_back(parse_placement(text.substr(0, comma)));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  TO_CHECK(placements.size() <= Mesh::kMaxAxes,
           "a layout has at most {} placements, got {}", Mesh::kMaxAxes,
           placements.size());
  Layout layout(static_cast<int>(placements.size()));
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    layout.set(axis, placements[axis]);
  }
  return layout;
}

bool Layout::has_partial() const { return partial_axes() != 0; }

AxisSet Layout::axes_sharding(int dim) const {
  AxisSet set = 0;
  for (int axis = 0; axis < num_axes_; ++axis) {
    if ((*this)[axis].is_shard(dim)) set |= AxisSet{1} << axis;
  }
  return set;
}

AxisSet Layout::partial_axes() const {
  AxisSet set = 0;
  for (int axis = 0; axis < num_axes_; ++axis) {
    if ((*this)[axis].is_partial()) set |= AxisSet{1} << axis;
  }
  return set;
}

AxisSet Layout::sharding_axes() const {
  AxisSet set = 0;
  for (int axis = 0; axis < num_axes_; ++axis) {
    if ((*this)[axis].is_shard()) set |= AxisSet{1} << axis;
  }
  return set;
}

AxisSet Layout::replicate_axes() const {
  AxisSet set = 0;
  for (int axis = 0; axis < num_axes_; ++axis) {
    if ((*this)[axis].is_replicate()) set |= AxisSet{1} << axis;
  }
  return set;
}

std::string Layout::to_string() const {
  std::string text;
  for (int axis = 0; axis < num_axes_; ++axis) {
    const Placement placement = (*this)[axis];
    if (axis > 0) text += ',';
    if (placement.is_shard()) {
      text += str_format("S{}", placement.dim());
    } else {
      text += placement.is_partial() ? 'P' : 'R';
    }
  }
  return text;
}

int num_shards(const Layout& layout, const Mesh& mesh) {
  int shards = 1;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (layout[axis].is_shard()) shards *= mesh.size(axis);
  }
  return shards;
}

bool divides(std::span<const std::int64_t> shape, const Layout& layout,
             const Mesh& mesh) {
  std::array<std::int64_t, Placement::kMaxDim + 1> pieces;
  pieces.fill(1);
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    const int dim = layout[axis].dim();
    if (dim < 0) continue;
    if (dim >= static_cast<int>(shape.size())) return false;
    pieces[dim] *= mesh.size(axis);
    if (!splits_evenly(shape[dim], pieces[dim])) return false;
  }
  return true;
}

bool applies_to(std::span<const std::int64_t> shape, const Layout& layout) {
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    const int dim = layout[axis].dim();
    if (dim < 0) continue;
    if (dim >= static_cast<int>(shape.size()) || shape[dim] == 0) return false;
  }
  return true;
}

DimSet uneven_dims(std::span<const std::int64_t> shape, const Layout& layout,
                   const Mesh& mesh) {
  DimSet dims = 0;
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    const int parts = mesh.size_of(layout.axes_sharding(dim));
    if (!splits_evenly(shape[dim], parts)) dims |= DimSet{1} << dim;
  }
  return dims;
}

DimRange range_of(std::int64_t size, AxisSet axes, const Mesh& mesh, int rank) {
  DimRange range{0, size};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!(axes >> axis & 1)) continue;
    const std::int64_t part = largest_part(range.size(), mesh.size(axis));
    const std::int64_t skipped = part * mesh.coordinate(rank, axis);
    range.begin = std::min(range.begin + skipped, range.end);
    range.end = std::min(range.begin + part, range.end);
  }
  return range;
}

std::vector<std::int64_t> part_sizes(std::int64_t size, AxisSet axes,
                                     const Mesh& mesh) {
  std::vector<std::int64_t> sizes;
  for (const int rank : mesh.group_of(axes, 0)) {
    sizes.push_back(range_of(size, axes, mesh, rank).size());
  }
  return sizes;
}

bool has_empty_part(std::int64_t size, AxisSet axes, const Mesh& mesh) {
  const std::vector<std::int64_t> sizes = part_sizes(size, axes, mesh);
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

double shards_of_largest(std::span<const std::int64_t> shape,
                         const Layout& layout, const Mesh& mesh) {
  std::array<std::int64_t, Placement::kMaxDim + 1> parts;
  parts.fill(1);
  double shards = 1;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (layout[axis].is_shard()) parts[layout[axis].dim()] *= mesh.size(axis);
  }
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (dim >= parts.size() || parts[dim] == 1) continue;
    shards *= static_cast<double>(shape[dim]) /
              static_cast<double>(largest_part(shape[dim], parts[dim]));
  }
  return shards;
}

Shape local_shape(std::span<const std::int64_t> shape, const Layout& layout,
                  const Mesh& mesh, int rank) {
  TO_ASSERT(applies_to(shape, layout), "layout {} of a tensor of shape {}",
            layout.to_string(), str_join(shape, "x"));
  Shape local(shape.begin(), shape.end());
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    local[dim] = local_range(shape, layout, mesh, dim, rank).size();
  }
  return local;
}

Shape local_shape(const TensorMeta& meta, const Layout& layout,
                  const Mesh& mesh, int rank) {
  Shape local = local_shape(meta.counts(), layout, mesh, rank);
  for (std::size_t dim = 0; dim < meta.units.size(); ++dim) {
    local[dim] *= meta.units[dim];
  }
  return local;
}

bool has_lone_entry(const TensorMeta& meta, const Layout& layout,
                    const Mesh& mesh) {
  for (int dim = 0; dim < meta.rank(); ++dim) {
    const AxisSet axes = layout.axes_sharding(dim);
    const std::int64_t count = meta.shape[dim] / meta.unit(dim);
    if (meta.unit(dim) > 1 || splits_evenly(count, mesh.size_of(axes))) {
      continue;
    }
    const std::vector<std::int64_t> sizes = part_sizes(count, axes, mesh);
    if (*std::min_element(sizes.begin(), sizes.end()) <= 1) return true;
  }
  return false;
}

DimRange local_range(std::span<const std::int64_t> shape, const Layout& layout,
                     const Mesh& mesh, int dim, int rank) {
  return range_of(shape[dim], layout.axes_sharding(dim), mesh, rank);
}

std::int64_t num_elements(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

}  // namespace tensoropt
