#include "problem/frontier.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "problem/sum_grid.h"

namespace tensoropt {

namespace {

// Sums wait until they are the kept points divided by this: a merge copies all
// that is kept, so few are not worth one; of many, more are dominated by others
// that wait.
constexpr std::size_t kKeptPerWaiting = 4;
// Of the tolerance: the part that sums on a grid may use up.
constexpr double kGridShare = 1.0 / 8;
// Where only so many points are wanted: cells of a grid for each of them, and
// by how much tolerances are raised until no more are left.
constexpr double kCellsPerPoint = 4;
constexpr double kCoarser = 1.5;

// The first index in [first, last) for which `holds` is false, given that it
// holds up to some index and not from there on. O(log of the distance).
template <typename Predicate>
std::size_t gallop(std::size_t first, std::size_t last, Predicate&& holds) {
  std::size_t step = 1;
  while (first < last && holds(first)) {
    // [.., first] hold; look further and further ahead.
    const std::size_t next = first + step;
    if (next >= last || !holds(next)) {
      std::size_t low = first + 1;
      std::size_t high = std::min(next, last);
      while (low < high) {
        const std::size_t middle = low + (high - low) / 2;
        if (holds(middle)) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      return low;
    }
    first = next + 1;
    step *= 2;
  }
  return first;
}

}  // namespace

void Frontier::push_back(Point point, std::uint32_t from_left,
                         std::uint32_t from_right) {
  memory.push_back(point.memory);
  time.push_back(point.time);
  left.push_back(from_left);
  right.push_back(from_right);
}

void Frontier::append(const Frontier& other) {
  memory.insert(memory.end(), other.memory.begin(), other.memory.end());
  time.insert(time.end(), other.time.begin(), other.time.end());
  left.insert(left.end(), other.left.begin(), other.left.end());
  right.insert(right.end(), other.right.begin(), other.right.end());
}

void Frontier::resize(std::size_t size) {
  memory.resize(size);
  time.resize(size);
  left.resize(size);
  right.resize(size);
}

FrontierView Frontier::view(std::size_t first, std::size_t last) const {
  return {std::span(memory).subspan(first, last - first),
          std::span(time).subspan(first, last - first),
          static_cast<std::uint32_t>(first)};
}

std::vector<bool> thin(FrontierView frontier, Tolerance tolerance) {
  const std::size_t size = frontier.size();
  std::vector<bool> keep(size, false);
  if (size == 0) return keep;
  keep.front() = keep.back() = true;
  const double memory_factor = 1 + tolerance.memory;
  const double time_factor = 1 + tolerance.time;
  std::size_t kept = 0;
  for (std::size_t next = 1; next < size;) {
    if (frontier.time[kept] <= time_factor * frontier.time[next]) {
      ++next;  // covered by the kept point before it
      continue;
    }
    // The furthest point that still covers `next` from behind.
    kept = next;
    while (kept + 1 < size &&
           frontier.memory[kept + 1] <= memory_factor * frontier.memory[next]) {
      ++kept;
    }
    keep[kept] = true;
    next = kept + 1;
  }
  return keep;
}

FrontierBuilder::FrontierBuilder(Tolerance tolerance, double memory_limit,
                                 std::size_t most_points)
    : tolerance_(tolerance),
      memory_limit_(memory_limit),
      most_points_(most_points) {
  if (tolerance.memory <= 0 && tolerance.time <= 0) return;
  grid_ = std::make_unique<SumGrid>();
}

FrontierBuilder::~FrontierBuilder() = default;

bool FrontierBuilder::refuses(Point point) const {
  if (point.memory > memory_limit_) return true;
  const auto above =
      std::upper_bound(kept_.memory.begin(), kept_.memory.end(), point.memory);
  return dominated(above - kept_.memory.begin(), point);
}

void FrontierBuilder::add(Point point, std::uint32_t left,
                          std::uint32_t right) {
  merge_waiting();
  if (!refuses(point)) insert(point, left, right);
}

// Puts in a point that nothing dominates.
void FrontierBuilder::insert(Point point, std::uint32_t left,
                             std::uint32_t right) {
  const auto at =
      std::lower_bound(kept_.memory.begin(), kept_.memory.end(), point.memory) -
      kept_.memory.begin();
  auto last = at;  // the new point dominates [at, last)
  const auto size = static_cast<std::ptrdiff_t>(kept_.size());
  while (last < size && kept_.time[last] >= point.time) ++last;
  const auto replace = [&](auto& values, auto value) {
    if (last == at) {
      values.insert(values.begin() + at, value);
    } else {
      values[at] = value;
      values.erase(values.begin() + at + 1, values.begin() + last);
    }
  };
  replace(kept_.memory, point.memory);
  replace(kept_.time, point.time);
  replace(kept_.left, left);
  replace(kept_.right, right);
}

void FrontierBuilder::add_product(const FrontierView& left,
                                  const FrontierView& right) {
  if (grid_ != nullptr && grid_->prepare(left, right, on_grid(left, right))) {
    add_on_grid(left, right);
  } else if (left.size() <= right.size()) {
    for (std::size_t i = 0; i < left.size(); ++i) {
      const auto from = static_cast<std::uint32_t>(left.first + i);
      collect_new({right, left.point(i)}, [&](std::uint32_t j) {
        return std::pair(from, right.first + j);
      });
    }
  } else {
    for (std::size_t j = 0; j < right.size(); ++j) {
      const auto from = static_cast<std::uint32_t>(right.first + j);
      collect_new({left, right.point(j)}, [&](std::uint32_t i) {
        return std::pair(left.first + i, from);
      });
    }
  }
}

// With as many cells as it takes to keep a few times the most points.
Tolerance FrontierBuilder::on_grid(const FrontierView& left,
                                   const FrontierView& right) const {
  Tolerance grid{kGridShare * tolerance_.memory, kGridShare * tolerance_.time};
  if (most_points_ == kAllPoints || grid.memory <= 0) return grid;
  const double least = left.memory.front() + right.memory.front();
  const double most = left.memory.back() + right.memory.back();
  const double cells = kCellsPerPoint * static_cast<double>(most_points_);
  if (least > 0) {
    grid.memory = std::max(grid.memory, std::log(most / least) / cells);
  }
  return grid;
}

void FrontierBuilder::add_on_grid(const FrontierView& left,
                                  const FrontierView& right) {
  Frontier sums;
  grid_->add_product(memory_limit_, sums);
  on_grid_ = true;
  collect_new({sums.view(), {}}, [&](std::uint32_t i) {
    return std::pair(sums.left[i], sums.right[i]);
  });
  // A cell may have preferred another sum to that at an end.
  const auto add_end = [&](std::size_t l, std::size_t r) {
    const Point a = left.point(l);
    const Point b = right.point(r);
    add({a.memory + b.memory, a.time + b.time},
        static_cast<std::uint32_t>(left.first + l),
        static_cast<std::uint32_t>(right.first + r));
  };
  add_end(0, 0);
  add_end(left.size() - 1, right.size() - 1);
}

// Sums on a grid have used up a part of the tolerance.
std::vector<bool> FrontierBuilder::kept_by_thinning() const {
  const auto rest = [&](double tolerance) {
    const double used = on_grid_ ? kGridShare * tolerance : 0;
    return (tolerance - used) / (1 + used);
  };
  Tolerance tolerance{rest(tolerance_.memory), rest(tolerance_.time)};
  std::vector<bool> keep = thin(kept_.view(), tolerance);
  const auto is_too_many = [&] {
    const auto count = std::count(keep.begin(), keep.end(), true);
    return static_cast<std::size_t>(count) > most_points_;
  };
  while (is_too_many()) {
    tolerance = {kCoarser * tolerance.memory, kCoarser * tolerance.time};
    keep = thin(kept_.view(), tolerance);
  }
  return keep;
}

// Both sides are sorted, so that runs of the stairs which one kept point
// dominates are jumped over.
template <typename Sources>
void FrontierBuilder::collect_new(const Stairs& stairs, Sources&& sources) {
  const std::size_t size = stairs.frontier.size();
  std::size_t above = 0;  // first kept point with more memory
  for (std::size_t j = 0; j < size;) {
    const Point point = stairs.point(j);
    if (point.memory > memory_limit_) break;
    above = gallop(above, kept_.size(), [&](std::size_t k) {
      return kept_.memory[k] <= point.memory;
    });
    if (!dominated(above, point)) {
      const auto [left, right] = sources(static_cast<std::uint32_t>(j++));
      waiting_.push_back({point, left, right});
      continue;
    }
    const double time = kept_.time[above - 1];
    j = gallop(j + 1, size,
               [&](std::size_t k) { return stairs.point(k).time >= time; });
  }
  if (waiting_.size() >= kept_.size() / kKeptPerWaiting) merge_waiting();
}

// Of equal points the first is kept.
void FrontierBuilder::merge_waiting() {
  if (waiting_.empty()) return;
  const auto is_before = [](const Waiting& a, const Waiting& b) {
    return std::pair(a.point.memory, a.point.time) <
           std::pair(b.point.memory, b.point.time);
  };
  if (!std::is_sorted(waiting_.begin(), waiting_.end(), is_before)) {
    std::stable_sort(waiting_.begin(), waiting_.end(), is_before);
  }
  merged_.resize(0);
  std::size_t k = 0;
  const auto copy_below = [&](double memory) {
    for (; k < kept_.size() && kept_.memory[k] < memory; ++k) {
      merged_.push_back({kept_.memory[k], kept_.time[k]}, kept_.left[k],
                        kept_.right[k]);
    }
  };
  for (const Waiting& one : waiting_) {
    copy_below(one.point.memory);
    while (k < kept_.size() && kept_.time[k] >= one.point.time) ++k;
    if (merged_.size() > 0 && merged_.time.back() <= one.point.time) continue;
    merged_.push_back(one.point, one.left, one.right);
  }
  copy_below(std::numeric_limits<double>::infinity());
  std::swap(kept_, merged_);
  waiting_.clear();
}

bool FrontierBuilder::move_to(Frontier& out) {
  merge_waiting();
  if (tolerance_.memory <= 0 && tolerance_.time <= 0) {
    out.append(kept_);
    kept_.resize(0);
    return false;
  }
  const std::vector<bool> keep = kept_by_thinning();
  const bool on_grid = std::exchange(on_grid_, false);
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (!keep[i]) continue;
    out.push_back({kept_.memory[i], kept_.time[i]}, kept_.left[i],
                  kept_.right[i]);
  }
  kept_.resize(0);
  return on_grid || std::find(keep.begin(), keep.end(), false) != keep.end();
}

}  // namespace tensoropt
