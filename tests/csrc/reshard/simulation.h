// All ranks of a mesh in one process, for programs on small arrays of integers.
//
//   Simulation simulation(mesh, shape, from);   // every rank's local array
//   simulation.run(program);                    // through encode()
//   simulation.holds(to);                       // same global tensor?
//
// The global tensor has a different number in every place. Partial values are
// split into random shares. Written from the meaning of layouts, not from the
// resharder, so that it can judge the resharder.
#pragma once

#include <random>
#include <vector>

#include "reshard/encode.h"
#include "reshard/step.h"
#include "sharding/layout.h"

namespace tensoropt::testing {

struct Array {
  Shape shape;
  std::vector<std::int64_t> values;  // row-major

  bool operator==(const Array&) const = default;
};

// The layouts of a tensor on a mesh that divide it; or those that leave no part
// of a dim empty.
std::vector<Layout> all_layouts(const Mesh& mesh, const Shape& shape,
                                bool uneven = false);

class Simulation {
 public:
  Simulation(const Mesh& mesh, const Shape& shape, const Layout& layout,
             unsigned seed = 0);

  void run(const Steps& steps);

  // True if the ranks hold the global tensor in this layout.
  bool holds(const Layout& layout) const;

  const Array& local(int rank) const { return locals_[rank]; }

 private:
  struct Fields;  // of a step on one rank

  void run_step(const std::vector<Fields>& by_rank);
  // The block of the global tensor that a rank holds, pending sums done.
  Array block(const Layout& layout, int rank) const;

  Mesh mesh_;
  Layout layout_;
  Array global_;
  std::vector<Array> locals_;  // by rank
};

}  // namespace tensoropt::testing
