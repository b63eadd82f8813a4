// Times of the reshards on one edge, each looked up once. Configs of both ends
// have few different layouts there: what else they say, such as what runs
// again, changes no reshard.
//
//   KnownTimes times(values, gradients, source_ports, target_ports);
//   times.between(source_config, target_config, /*backward=*/true).gradient_s;
//
// Complexity: O(configs * log(layouts)), and O(1) for each pair but the first
// of two layouts. Not for several threads at once.
#pragma once

#include <vector>

#include "cost/edge_cost.h"
#include "reshard/shared_resharder.h"

namespace tensoropt {

class KnownTimes {
 public:
  // Ports are by config.
  KnownTimes(const SharedResharder& values, const SharedResharder& gradients,
             const std::vector<Port>& sources,
             const std::vector<Port>& targets);

  ReshardTimes between(int source, int target, bool backward);

 private:
  struct Numbered {
    std::vector<int> number;  // by config
    std::vector<Layout> layouts;
  };
  class Table {
   public:
    Table(const SharedResharder& resharder, Numbered from, Numbered to);
    double time_s(int from, int to);

   private:
    SharedResharder resharder_;
    Numbered from_;
    Numbered to_;
    std::vector<double> times_;  // negative: not asked for yet
  };

  static Numbered numbered(const std::vector<Port>& ports, Layout Port::*part);

  Table values_;
  Table gradients_;  // from targets to sources
};

}  // namespace tensoropt
