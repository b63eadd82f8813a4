#include "reshard/simulation.h"

#include <numeric>

#include "reshard/moves.h"

namespace tensoropt::testing {

namespace {

// Elements before, in and after `dim` in a row-major array.
struct Strides {
  std::int64_t outer = 1;
  std::int64_t inner = 1;
};

Strides strides_of(const Shape& shape, int dim) {
  Strides strides;
  for (int i = 0; i < dim; ++i) strides.outer *= shape[i];
  for (std::size_t i = dim + 1; i < shape.size(); ++i) {
    strides.inner *= shape[i];
  }
  return strides;
}

// Positions begin..end-1 of a dim.
Array cut(const Array& array, int dim, std::int64_t begin, std::int64_t end) {
  const Strides strides = strides_of(array.shape, dim);
  Array result{array.shape, {}};
  result.shape[dim] = end - begin;
  for (std::int64_t o = 0; o < strides.outer; ++o) {
    const std::int64_t row = o * array.shape[dim];
    result.values.insert(result.values.end(),
                         array.values.begin() + (row + begin) * strides.inner,
                         array.values.begin() + (row + end) * strides.inner);
  }
  return result;
}

// Part `index` of `count` equal ones, or of `parts` if there are any.
Array chunk(const Array& array, int dim, std::int64_t count, std::int64_t index,
            const std::vector<std::int64_t>& parts) {
  if (!parts.empty()) {
    const auto end = parts.begin() + index;
    const std::int64_t begin = std::accumulate(parts.begin(), end, 0L);
    return cut(array, dim, begin, begin + *end);
  }
  const std::int64_t size = array.shape[dim] / count;
  return cut(array, dim, size * index, size * (index + 1));
}

Array join(const std::vector<Array>& arrays, int dim) {
  const Strides strides = strides_of(arrays[0].shape, dim);
  Array result{arrays[0].shape, {}};
  result.shape[dim] = 0;
  for (const Array& array : arrays) result.shape[dim] += array.shape[dim];
  for (std::int64_t o = 0; o < strides.outer; ++o) {
    for (const Array& array : arrays) {
      const std::int64_t row = array.shape[dim] * strides.inner;
      result.values.insert(result.values.end(), array.values.begin() + o * row,
                           array.values.begin() + (o + 1) * row);
    }
  }
  return result;
}

void add(Array& to, const Array& from) {
  for (std::size_t i = 0; i < to.values.size(); ++i) {
    to.values[i] += from.values[i];
  }
}

Array sum(const std::vector<Array>& arrays) {
  Array total = arrays[0];
  for (std::size_t i = 1; i < arrays.size(); ++i) add(total, arrays[i]);
  return total;
}

Array random_like(const Array& array, std::mt19937& rng) {
  Array result = array;
  for (std::int64_t& value : result.values) {
    value = std::uniform_int_distribution<int>(-1000, 1000)(rng);
  }
  return result;
}

// Whether every part of every dim has entries.
bool all_filled(const Shape& shape, const Layout& layout, const Mesh& mesh) {
  if (!applies_to(shape, layout)) return false;
  for (int rank = 0; rank < mesh.num_devices(); ++rank) {
    if (num_elements(local_shape(shape, layout, mesh, rank)) == 0) return false;
  }
  return true;
}

}  // namespace

// As step_code.h says.
struct Simulation::Fields {
  StepKind kind = StepKind::kSlice;
  int dim = -1;
  int to_dim = -1;
  AxisSet axes = 0;  // of its group
  std::int64_t size = 1;
  std::int64_t index = 0;
  std::vector<std::int64_t> parts = {};
  std::vector<std::int64_t> to_parts = {};

  // Takes what is next from `ints`.
  Fields(const std::int64_t*& ints, const std::vector<AxisSet>& groups)
      : kind(static_cast<StepKind>(ints[0] & ~kUneven)),
        dim(static_cast<int>(ints[1])),
        to_dim(static_cast<int>(ints[2])),
        axes(ints[3] < 0 ? 0 : groups[ints[3]]),
        size(ints[4]),
        index(ints[5]) {
    const bool uneven = (ints[0] & kUneven) != 0;
    ints += kIntsPerStep;
    if (!uneven) return;
    const std::int64_t* next = ints + 2;
    if (dim >= 0) parts.assign(next, next + size);
    if (to_dim >= 0) to_parts.assign(next + size, next + 2 * size);
    ints += 1 + ints[0];
  }
};

std::vector<Layout> all_layouts(const Mesh& mesh, const Shape& shape,
                                bool uneven) {
  const int num_codes = Placement::shard(static_cast<int>(shape.size())).code();
  std::vector<Layout> layouts{Layout::replicated(mesh.num_axes())};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::vector<Layout> longer;
    for (Layout layout : layouts) {
      for (int code = 0; code < num_codes; ++code) {
        layout.set(axis, Placement::from_code(code));
        if (uneven ? all_filled(shape, layout, mesh)
                   : divides(shape, layout, mesh)) {
          longer.push_back(layout);
        }
      }
    }
    layouts = std::move(longer);
  }
  return layouts;
}

Simulation::Simulation(const Mesh& mesh, const Shape& shape,
                       const Layout& layout, unsigned seed)
    : mesh_(mesh), layout_(layout), global_{shape, {}} {
  global_.values.resize(num_elements(shape));
  std::iota(global_.values.begin(), global_.values.end(), 1);
  std::mt19937 rng(seed);
  const AxisSet partial = layout.partial_axes();
  for (int rank = 0; rank < mesh.num_devices(); ++rank) {
    locals_.push_back(random_like(block(layout, rank), rng));
  }
  // The first rank of each pending sum takes what the others leave.
  for (int rank = 0; rank < mesh.num_devices(); ++rank) {
    if (mesh.index_in(partial, rank) != 0) continue;
    Array rest = block(layout, rank);
    for (const int other : mesh.group_of(partial, rank)) {
      if (other == rank) continue;
      for (std::size_t i = 0; i < rest.values.size(); ++i) {
        rest.values[i] -= locals_[other].values[i];
      }
    }
    locals_[rank] = rest;
  }
}

void Simulation::run(const Steps& steps) {
  std::vector<std::vector<Fields>> by_step(steps.size());
  for (int rank = 0; rank < mesh_.num_devices(); ++rank) {
    const EncodedProgram code =
        encode(steps, {.shape = global_.shape}, layout_, mesh_, rank);
    const std::int64_t* ints = code.steps.data();
    for (auto& by_rank : by_step) by_rank.emplace_back(ints, code.groups);
  }
  for (const auto& by_rank : by_step) run_step(by_rank);
  for (const Step& step : steps) layout_ = apply(step, layout_);
}

void Simulation::run_step(const std::vector<Fields>& by_rank) {
  std::vector<Array> results;
  for (int rank = 0; rank < mesh_.num_devices(); ++rank) {
    const auto& [kind, dim, to_dim, axes, size, index, parts, to_parts] =
        by_rank[rank];
    std::vector<Array> group;
    if (axes != 0) {
      for (const int other : mesh_.group_of(axes, rank)) {
        group.push_back(locals_[other]);
      }
    }
    switch (kind) {
      case StepKind::kAllGather:
        results.push_back(join(group, dim));
        break;
      case StepKind::kReduceScatter:
        results.push_back(chunk(sum(group), dim, size, index, parts));
        break;
      case StepKind::kAllReduce:
        results.push_back(sum(group));
        break;
      case StepKind::kAllToAll:
        for (Array& array : group) {
          array = chunk(array, to_dim, size, index, to_parts);
        }
        results.push_back(join(group, dim));
        break;
      case StepKind::kSlice:
        results.push_back(chunk(locals_[rank], dim, size, index, parts));
        break;
      case StepKind::kMask:
        results.push_back(locals_[rank]);
        if (index != 0) {
          results.back().values.assign(results.back().values.size(), 0);
        }
        break;
    }
  }
  locals_ = std::move(results);
}

bool Simulation::holds(const Layout& layout) const {
  for (int rank = 0; rank < mesh_.num_devices(); ++rank) {
    std::vector<Array> shares;
    for (const int other : mesh_.group_of(layout.partial_axes(), rank)) {
      shares.push_back(locals_[other]);
      if (shares.back().shape != shares[0].shape) return false;
    }
    if (sum(shares) != block(layout, rank)) return false;
  }
  return true;
}

Array Simulation::block(const Layout& layout, int rank) const {
  Array result = global_;
  for (int dim = 0; dim < static_cast<int>(global_.shape.size()); ++dim) {
    const DimRange range = local_range(global_.shape, layout, mesh_, dim, rank);
    result = cut(result, dim, range.begin, range.end);
  }
  return result;
}

}  // namespace tensoropt::testing
