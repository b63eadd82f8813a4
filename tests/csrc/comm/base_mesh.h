// The mesh of all devices of a cluster: one axis per prime factor of each
// level's count, levels from outer to inner, factors of a level ascending.
#pragma once

#include <utility>
#include <vector>

#include "comm/cluster.h"
#include "sharding/mesh.h"

namespace tensoropt {

inline Mesh base_mesh(const Cluster& cluster) {
  std::vector<MeshAxis> axes;
  for (std::size_t level = 0; level < cluster.levels.size(); ++level) {
    int left = cluster.levels[level].count;
    for (int factor = 2; left > 1; ++factor) {
      for (; left % factor == 0; left /= factor) {
        axes.push_back({factor, static_cast<int>(level)});
      }
    }
  }
  return Mesh(std::move(axes));
}

}  // namespace tensoropt
