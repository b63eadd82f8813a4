#include "reshard/simulation.h"

#include <numeric>

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

Array chunk(const Array& array, int dim, std::int64_t count,
            std::int64_t index) {
  const std::int64_t size = array.shape[dim] / count;
  return cut(array, dim, size * index, size * (index + 1));
}

Array join(const std::vector<Array>& arrays, int dim) {
  const Strides strides = strides_of(arrays[0].shape, dim);
  const std::int64_t row = arrays[0].shape[dim] * strides.inner;
  Array result{arrays[0].shape, {}};
  result.shape[dim] *= static_cast<std::int64_t>(arrays.size());
  for (std::int64_t o = 0; o < strides.outer; ++o) {
    for (const Array& array : arrays) {
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

}  // namespace

std::vector<Layout> all_layouts(const Mesh& mesh, const Shape& shape) {
  const int num_codes = Placement::shard(static_cast<int>(shape.size())).code();
  std::vector<Layout> layouts{Layout::replicated(mesh.num_axes())};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::vector<Layout> longer;
    for (Layout layout : layouts) {
      for (int code = 0; code < num_codes; ++code) {
        layout.set(axis, Placement::from_code(code));
        if (divides(shape, layout, mesh)) longer.push_back(layout);
      }
    }
    layouts = std::move(longer);
  }
  return layouts;
}

Simulation::Simulation(const Mesh& mesh, const Shape& shape,
                       const Layout& layout, unsigned seed)
    : mesh_(mesh), global_{shape, {}} {
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
  std::vector<EncodedProgram> codes;
  for (int rank = 0; rank < mesh_.num_devices(); ++rank) {
    codes.push_back(encode(steps, mesh_, rank));
  }
  for (std::size_t step = 0; step < steps.size(); ++step) {
    run_step(codes, step);
  }
}

void Simulation::run_step(const std::vector<EncodedProgram>& codes,
                          std::size_t step) {
  std::vector<Array> results;
  for (int rank = 0; rank < mesh_.num_devices(); ++rank) {
    const std::int64_t* fields = &codes[rank].steps[step * kIntsPerStep];
    const auto kind = static_cast<StepKind>(fields[0]);
    const int dim = static_cast<int>(fields[1]);
    const int to_dim = static_cast<int>(fields[2]);
    const std::int64_t size = fields[4];
    const std::int64_t index = fields[5];
    std::vector<Array> group;
    if (fields[3] >= 0) {
      for (const int other :
           mesh_.group_of(codes[rank].groups[fields[3]], rank)) {
        group.push_back(locals_[other]);
      }
    }
    switch (kind) {
      case StepKind::kAllGather:
        results.push_back(join(group, dim));
        break;
      case StepKind::kReduceScatter:
        results.push_back(chunk(sum(group), dim, size, index));
        break;
      case StepKind::kAllReduce:
        results.push_back(sum(group));
        break;
      case StepKind::kAllToAll:
        for (Array& array : group) array = chunk(array, to_dim, size, index);
        results.push_back(join(group, dim));
        break;
      case StepKind::kSlice:
        results.push_back(chunk(locals_[rank], dim, size, index));
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
