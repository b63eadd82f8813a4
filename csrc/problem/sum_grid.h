// All sums of two large frontiers, on a grid.
//
//   SumGrid grid;
//   if (grid.prepare(left, right, tolerance)) grid.add_product(limit, sums);
//
// Two frontiers of a thousand points have a million sums, of which hardly any
// two dominate each other, and most of which are then thinned. A grid has a
// cell for each small range of one cost, memory if that has a tolerance and
// else time, and a cell keeps the sum that costs least in the other one. So a
// sum takes a few nanoseconds, however many of them are kept.
//
// Cells are ranges of the first bits of a double: as wide, relatively, as the
// tolerance allows or up to four times narrower.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "problem/frontier.h"

namespace tensoropt {

class SumGrid {
 public:
  // The sums of these points, which must live until they are added. What is
  // kept will stand for all of them within `tolerance`. False, and nothing is
  // to be added, if there are not many more sums than cells, if no cost has a
  // tolerance, or if costs cannot be told apart by their first bits.
  bool prepare(const FrontierView& left, const FrontierView& right,
               Tolerance tolerance);

  // Appends to `out`, sorted, what the grid keeps of all sums of at most
  // `memory_limit`. O(sums + cells).
  void add_product(double memory_limit, Frontier& out);

 private:
  struct Cell {
    double other = std::numeric_limits<double>::infinity();
    double gridded = 0;
    std::uint32_t left = 0;
    std::uint32_t right = 0;
  };
  struct Range {
    double least;
    double most;
  };

  Range range() const;
  std::uint64_t key(double cost) const;
  void add_all(double memory_limit, std::uint64_t first);
  void move_to(Frontier& out);

  FrontierView left_;
  FrontierView right_;
  bool by_memory_ = true;
  int dropped_bits_ = 0;  // of a double
  std::vector<Cell> cells_;
};

}  // namespace tensoropt
