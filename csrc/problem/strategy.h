// One complete assignment: a config for every node, a choice for every node
// and every edge.
#pragma once

#include <cstdint>
#include <vector>

namespace tensoropt {

struct Strategy {
  double memory = 0;
  double time = 0;
  std::vector<int> config;             // by node
  std::vector<std::int32_t> node_tag;  // tag of the choice, by node
  std::vector<std::int32_t> edge_tag;  // by edge
};

}  // namespace tensoropt
