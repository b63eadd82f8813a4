// The fastest way to change a tensor's layout (section "re-scheduling" of the
// paper): shortest paths in the graph whose nodes are the layouts of one tensor
// and whose edges are the moves of step.h, weighted by their times.
//
//   TensorResharder resharder(mesh, collectives, device, {512, 1024}, 4);
//   double s = resharder.time_s(from, to);
//   const TensorResharder::Path& path = resharder.path(from, to);
//
// Which layouts a path may pass:
//   exact       all layouts that divide the shape, or split it unevenly where
//               that is allowed, if they are at most `max_layouts`;
//   tied        beyond that, those in which neighbouring alike axes that have
//               the same two ends stay together, if they are at most
//               `max_layouts`. This loses detours of a part of such a run;
//   restricted  beyond that, of these only Replicate and the placements of the
//               two ends. This loses detours over a third placement, such as
//               slicing over the devices of a machine what crosses its network
//               card.
// Every pair of these layouts is reachable in all.
//
// Times: collectives as the model says; where a tensor dim other than 0 is cut
// or joined, the copy that makes the pieces contiguous; slices and masks as
// copies. Where parts differ, the largest counts. Times are added in whole
// picoseconds, so that ties are exact; among
// paths of equal time one with the fewest steps is taken, then the one with the
// smallest layouts, compared from the end. All ranks therefore agree. Lookups
// have float's precision.
//
// Complexity, with M legal moves between S layouts: exact and tied: O(M + S
// sqrt(S)) for each new `from` (and way to tie), then O(axes) per time and
// O(steps * axes) more for a new path; 16 bytes per move and 6 per layout for
// each `from` are kept. Restricted: O(M + S sqrt(S)) for each new pair, S <=
// 3^axes. Threads: all const functions may be called at once from several
// threads.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/collective.h"
#include "reshard/step.h"

namespace tensoropt {

class PathFinder;

class TensorResharder {
 public:
  static constexpr int kMaxLayouts = 1024;

  struct Path {
    Steps steps;
    double time_s = 0;
  };

  // `item_size` in bytes. Only `dims` are split, by the ends of paths as on the
  // way, and of these only `uneven` ones into parts that differ. Keeps
  // references to nothing. Throws UserError for a shape with more than 14 dims.
  TensorResharder(const Mesh& mesh, const CollectiveModel& collectives,
                  const Device& device, const Shape& shape,
                  std::int64_t item_size, int max_layouts = kMaxLayouts,
                  DimSet dims = kAllDims, DimSet uneven = 0);
  TensorResharder(TensorResharder&&) noexcept;
  TensorResharder& operator=(TensorResharder&&) noexcept;
  ~TensorResharder();

  // The path stays valid as long as this object. Throws UserError if a layout
  // is none that paths may pass, or not one of this mesh.
  const Path& path(const Layout& from, const Layout& to) const;

  // path(from, to).time_s, without building the program where that is cheaper.
  double time_s(const Layout& from, const Layout& to) const;

  // True if paths may pass all layouts.
  bool is_exact() const;

 private:
  struct Cache;
  std::unique_ptr<PathFinder> finder_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace tensoropt
