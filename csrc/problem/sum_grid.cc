#include "problem/sum_grid.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

namespace tensoropt {

namespace {

constexpr int kFractionBits = 52;
// With fewer sums than this times the cells the cells are what takes time.
constexpr std::uint64_t kSumsPerCell = 4;
// With fewer all sums are looked at one by one.
constexpr std::uint64_t kManySums = 4096;

// The first bits of a fraction between 1 and 2 that tell apart what is so far
// away, relatively.
int bits_within(double tolerance) {
  const double bits = std::ceil(-std::log2(tolerance));
  return static_cast<int>(std::clamp(bits, 1.0, 1.0 * kFractionBits));
}

}  // namespace

SumGrid::Range SumGrid::range() const {
  if (by_memory_) {
    return {left_.memory.front() + right_.memory.front(),
            left_.memory.back() + right_.memory.back()};
  }
  return {left_.time.back() + right_.time.back(),
          left_.time.front() + right_.time.front()};
}

// Ascends with the cost, which is not negative.
std::uint64_t SumGrid::key(double cost) const {
  return std::bit_cast<std::uint64_t>(cost) >> dropped_bits_;
}

bool SumGrid::prepare(const FrontierView& left, const FrontierView& right,
                      Tolerance tolerance) {
  const std::uint64_t sums = std::uint64_t{left.size()} * right.size();
  by_memory_ = tolerance.memory > 0;
  const double width = by_memory_ ? tolerance.memory : tolerance.time;
  if (sums < kManySums || width <= 0) return false;
  left_ = left;
  right_ = right;
  dropped_bits_ = kFractionBits - bits_within(width);
  const Range costs = range();
  const bool normal = costs.least >= std::numeric_limits<double>::min() &&
                      std::isfinite(costs.most);
  return normal &&
         (key(costs.most) - key(costs.least) + 1) * kSumsPerCell <= sums;
}

void SumGrid::add_product(double memory_limit, Frontier& out) {
  const Range costs = range();
  const std::uint64_t first = key(costs.least);
  cells_.assign(key(costs.most) - first + 1, {});
  add_all(memory_limit, first);
  move_to(out);
}

void SumGrid::add_all(double memory_limit, std::uint64_t first) {
  for (std::size_t i = 0; i < left_.size(); ++i) {
    const Point one = left_.point(i);
    for (std::size_t j = 0; j < right_.size(); ++j) {
      const double memory = one.memory + right_.memory[j];
      const double time = one.time + right_.time[j];
      if (memory > memory_limit) break;
      const double gridded = by_memory_ ? memory : time;
      const double other = by_memory_ ? time : memory;
      Cell& cell = cells_[key(gridded) - first];
      if (other > cell.other) continue;
      if (other == cell.other && gridded >= cell.gridded) continue;
      cell = {other, gridded, static_cast<std::uint32_t>(left_.first + i),
              static_cast<std::uint32_t>(right_.first + j)};
    }
  }
}

// From the least of the gridded cost to the most, leaving out what is
// dominated.
void SumGrid::move_to(Frontier& out) {
  const std::size_t before = out.size();
  double least = std::numeric_limits<double>::infinity();
  for (const Cell& cell : cells_) {
    if (cell.other >= least) continue;
    least = cell.other;
    const Point point = by_memory_ ? Point{cell.gridded, cell.other}
                                   : Point{cell.other, cell.gridded};
    out.push_back(point, cell.left, cell.right);
  }
  if (by_memory_) return;
  const auto reverse = [&](auto& values) {
    std::reverse(values.begin() + static_cast<std::ptrdiff_t>(before),
                 values.end());
  };
  reverse(out.memory);
  reverse(out.time);
  reverse(out.left);
  reverse(out.right);
}

}  // namespace tensoropt
