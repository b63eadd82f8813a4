// Tensor layouts: for each mesh axis Replicate, Shard(dim) or Partial.
//
//   Layout layout = Layout::replicated(mesh.num_axes());
//   layout.set(0, Placement::shard(1));     // axis 0 splits tensor dim 1
//   layout.to_string();                     // "S1,R"
//   local_shape({8, 6}, layout, mesh);      // {8, 3} when axis 0 has size 2
//
// Several axes may shard one dim; the outer axis is the more significant
// block. A size that does not divide is cut as torch.chunk does, by one axis
// after the other from the outermost on: so DTensor places it as well. Parts
// then differ: no rank has more of any dim than rank 0. `divides` says whether
// all are equal. A dim of size 0 is never split; other dims of a tensor without
// elements may be. A tensor with units (TensorMeta::units) is cut as one of its
// counts is.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "sharding/mesh.h"

namespace tensoropt {

using Shape = std::vector<std::int64_t>;

// A set of tensor dims, as a bit mask.
using DimSet = std::uint32_t;
constexpr DimSet kAllDims = ~DimSet{0};

// What one mesh axis does to a tensor.
class Placement {
 public:
  static constexpr int kMaxDim = 13;

  constexpr Placement() = default;
  static constexpr Placement replicate() { return Placement(0); }
  static constexpr Placement partial() { return Placement(1); }
  static constexpr Placement shard(int dim) { return Placement(dim + 2); }
  static constexpr Placement from_code(int code) { return Placement(code); }

  constexpr bool is_replicate() const { return code_ == 0; }
  constexpr bool is_partial() const { return code_ == 1; }
  constexpr bool is_shard() const { return code_ >= 2; }
  constexpr bool is_shard(int dim) const { return code_ == dim + 2; }
  // The tensor dim that is split; -1 if none is.
  constexpr int dim() const { return code_ >= 2 ? code_ - 2 : -1; }
  constexpr int code() const { return code_; }

  constexpr bool operator==(const Placement&) const = default;

 private:
  explicit constexpr Placement(int code)
      : code_(static_cast<std::uint8_t>(code)) {}
  std::uint8_t code_ = 0;
};

// A list of placements, one per mesh axis, packed into one word (4 bits each),
// so that layouts are compared, hashed and copied as integers.
class Layout {
 public:
  Layout() = default;
  static Layout replicated(int num_axes) { return Layout(num_axes); }
  // Parses the form that to_string writes; throws UserError.
  static Layout parse(std::string_view text);

  int num_axes() const { return num_axes_; }
  Placement operator[](int axis) const {
    return Placement::from_code(static_cast<int>(bits_ >> (4 * axis) & 15));
  }
  void set(int axis, Placement placement) {
    const int shift = 4 * axis;
    bits_ = (bits_ & ~(std::uint64_t{15} << shift)) |
            (static_cast<std::uint64_t>(placement.code()) << shift);
  }

  bool has_partial() const;
  // The axes that shard `dim`, or any dim, or that are Partial / Replicate.
  AxisSet axes_sharding(int dim) const;
  AxisSet sharding_axes() const;
  AxisSet partial_axes() const;
  AxisSet replicate_axes() const;

  std::string to_string() const;  // e.g. "S0,R,P"
  std::size_t hash() const {
    return std::hash<std::uint64_t>{}(bits_ * 31 + num_axes_);
  }
  bool operator==(const Layout&) const = default;
  auto operator<=>(const Layout&) const = default;

 private:
  explicit Layout(int num_axes) : num_axes_(num_axes) {}
  std::uint64_t bits_ = 0;
  int num_axes_ = 0;
};

// Into how many pieces the layout cuts a tensor (Partial does not cut).
int num_shards(const Layout& layout, const Mesh& mesh);

// Whether a dim of this size can be cut into that many equal parts.
constexpr bool splits_evenly(std::int64_t size, std::int64_t parts) {
  return parts == 1 || (size > 0 && size % parts == 0);
}

// True if every dim exists and is divided evenly by the axes that shard it.
bool divides(std::span<const std::int64_t> shape, const Layout& layout,
             const Mesh& mesh);

// True if every dim that is split exists and has entries.
bool applies_to(std::span<const std::int64_t> shape, const Layout& layout);

// The dims whose parts differ in size.
DimSet uneven_dims(std::span<const std::int64_t> shape, const Layout& layout,
                   const Mesh& mesh);

// The half-open range of a dim that a rank has.
struct DimRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const DimRange&) const = default;
};

// The range that a rank has of a dim of this size, split over these axes.
DimRange range_of(std::int64_t size, AxisSet axes, const Mesh& mesh, int rank);

// The sizes of the parts into which the axes cut a dim of this size, in the
// order of the ranks of a group.
std::vector<std::int64_t> part_sizes(std::int64_t size, AxisSet axes,
                                     const Mesh& mesh);
bool has_empty_part(std::int64_t size, AxisSet axes, const Mesh& mesh);

constexpr std::int64_t largest_part(std::int64_t size, std::int64_t parts) {
  return (size + parts - 1) / parts;
}

// The size of the tensor over that of its largest part: num_shards, if parts
// are equal.
double shards_of_largest(std::span<const std::int64_t> shape,
                         const Layout& layout, const Mesh& mesh);

// The shape that a rank has; by default the largest. Requires
// applies_to(shape, layout).
Shape local_shape(std::span<const std::int64_t> shape, const Layout& layout,
                  const Mesh& mesh, int rank = 0);
// The same for a tensor that may have units.
Shape local_shape(const TensorMeta& meta, const Layout& layout,
                  const Mesh& mesh, int rank = 0);

// Whether some rank has one entry of a dim where others have more. An operator
// may then copy its operand on these and not on that one, since PyTorch calls
// strides of dims of one entry contiguous whatever they are.
bool has_lone_entry(const TensorMeta& meta, const Layout& layout,
                    const Mesh& mesh);

DimRange local_range(std::span<const std::int64_t> shape, const Layout& layout,
                     const Mesh& mesh, int dim, int rank);

std::int64_t num_elements(std::span<const std::int64_t> shape);

}  // namespace tensoropt

template <>
struct std::hash<tensoropt::Layout> {
  std::size_t operator()(const tensoropt::Layout& layout) const {
    return layout.hash();
  }
};
