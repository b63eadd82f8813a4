// Cost frontiers: sets of (memory, time) points, none of which dominates
// another, sorted by memory ascending, so that time strictly descends.
//
//   FrontierBuilder builder;
//   builder.add_product(left.view(), right.view());
//   Frontier frontier;
//   builder.move_to(frontier);
//
// A point remembers the two points it was made of (`left`, `right`: positions
// in the tables they came from), from which a strategy is unrolled.
//
// Ties: of points with equal costs the first one added stays.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace tensoropt {

struct Point {
  double memory = 0;
  double time = 0;
  friend bool operator==(const Point&, const Point&) = default;
};

// `a` is at least as good as `b` in both costs.
inline bool dominates(Point a, Point b) {
  return a.memory <= b.memory && a.time <= b.time;
}

// A frontier stored elsewhere. `first` is the position of its first point in
// the table that it belongs to; back-pointers count from there.
struct FrontierView {
  std::span<const double> memory;
  std::span<const double> time;
  std::uint32_t first = 0;

  std::size_t size() const { return memory.size(); }
  Point point(std::size_t i) const { return {memory[i], time[i]}; }
  // The least memory with the least time: no point is better in any cost.
  Point ideal() const { return {memory.front(), time.back()}; }
};

// Structure-of-arrays storage of one or of many frontiers, one after another.
struct Frontier {
  std::vector<double> memory;
  std::vector<double> time;
  std::vector<std::uint32_t> left;
  std::vector<std::uint32_t> right;

  std::size_t size() const { return memory.size(); }
  void push_back(Point point, std::uint32_t from_left,
                 std::uint32_t from_right);
  void append(const Frontier& other);
  void resize(std::size_t size);
  FrontierView view() const { return view(0, size()); }
  FrontierView view(std::size_t first, std::size_t last) const;
};

// The relative errors allowed where one point stands for another.
struct Tolerance {
  double memory = 0;
  double time = 0;
};

// Marks the points of a frontier to keep so that every point f has a kept one
// k with k.memory <= (1 + tolerance.memory) f.memory and k.time <=
// (1 + tolerance.time) f.time. With no tolerance of memory, what fits a limit
// is never replaced by what does not. The first and the last point are always
// kept; no tolerance keeps all. The set is the least one that a single pass can
// find. O(size).
std::vector<bool> thin(FrontierView frontier, Tolerance tolerance);

class SumGrid;

inline constexpr std::size_t kAllPoints =
    std::numeric_limits<std::size_t>::max();

// Collects candidate points and keeps those that no other one dominates.
class FrontierBuilder {
 public:
  // Points above `memory_limit` are refused. move_to() thins within
  // `tolerance`, and further until no more than `most_points` are left: then
  // they stand for the others within no bound.
  explicit FrontierBuilder(
      Tolerance tolerance = {},
      double memory_limit = std::numeric_limits<double>::infinity(),
      std::size_t most_points = kAllPoints);
  ~FrontierBuilder();

  // Whether the limit excludes it or a point dominates it, of those that are
  // kept: some of the latest wait. O(log size).
  bool refuses(Point point) const;

  // O(size).
  void add(Point point, std::uint32_t left, std::uint32_t right);
  // Adds all sums of a point of `left` and a point of `right`. For every point
  // of the smaller one O(log size) for each run of points of the larger one
  // that one kept point dominates; sums that none dominates wait until they are
  // a part of what is kept, and are merged then: O(log size) for each,
  // amortised. A part of the tolerance is for sums of large frontiers, see
  // sum_grid.h.
  void add_product(const FrontierView& left, const FrontierView& right);

  template <typename Predicate>
  void remove_if(Predicate&& unwanted);

  // Thins what was collected, appends it to `out` and starts afresh. Returns
  // whether thinning dropped a point.
  bool move_to(Frontier& out);

 private:
  // A frontier moved by one point of another one.
  struct Stairs {
    FrontierView frontier;
    Point shift;
    Point point(std::size_t i) const {
      return {frontier.memory[i] + shift.memory, frontier.time[i] + shift.time};
    }
  };

  struct Waiting {
    Point point;
    std::uint32_t left;
    std::uint32_t right;
  };

  Tolerance on_grid(const FrontierView& left, const FrontierView& right) const;
  void add_on_grid(const FrontierView& left, const FrontierView& right);
  std::vector<bool> kept_by_thinning() const;
  // Whether points [0, above), which have no more memory, dominate.
  bool dominated(std::size_t above, Point point) const {
    return above > 0 && kept_.time[above - 1] <= point.time;
  }
  void insert(Point point, std::uint32_t left, std::uint32_t right);
  template <typename Sources>
  void collect_new(const Stairs& stairs, Sources&& sources);
  void merge_waiting();

  Tolerance tolerance_;
  double memory_limit_;
  std::size_t most_points_;
  std::unique_ptr<SumGrid> grid_;  // if there is any tolerance
  bool on_grid_ = false;           // whether kept points are from the grid
  Frontier kept_;
  Frontier merged_;  // scratch
  // No kept point dominates them.
  std::vector<Waiting> waiting_;
};

template <typename Predicate>
void FrontierBuilder::remove_if(Predicate&& unwanted) {
  merge_waiting();
  std::size_t size = 0;
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (unwanted(Point{kept_.memory[i], kept_.time[i]})) continue;
    kept_.memory[size] = kept_.memory[i];
    kept_.time[size] = kept_.time[i];
    kept_.left[size] = kept_.left[i];
    kept_.right[size] = kept_.right[i];
    ++size;
  }
  kept_.resize(size);
}

}  // namespace tensoropt
