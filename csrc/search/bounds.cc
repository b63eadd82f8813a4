#include "search/bounds.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <utility>

#include "common/check.h"
#include "common/parallel.h"
#include "search/sparse_sweep.h"

namespace tensoropt {

namespace {

// Corners are moved outwards by this factor: bounds are sums of many floats.
constexpr double kRounding = 1e-5;
// So many weightings go over all cells before the others.
constexpr std::size_t kFirstPasses = 6;

using Masks = std::vector<std::vector<std::uint64_t>>;  // by expression, cell

double term(double weight, double cost) {
  return weight == 0 ? 0 : weight * cost;
}

// Weightings from one end to the other, evenly.
std::vector<std::size_t> spread(const std::vector<Weights>& weights) {
  std::vector<std::size_t> order(weights.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return weights[a].memory * weights[b].time >
           weights[b].memory * weights[a].time;
  });
  if (order.size() <= kFirstPasses) return order;
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < kFirstPasses; ++i) {
    chosen.push_back(order[i * (order.size() - 1) / (kFirstPasses - 1)]);
  }
  return chosen;
}

// The corners that the first weightings leave to every cell.
class FirstPasses {
 public:
  FirstPasses(const MinPlusPlan& plan, const CornerLimits& limits)
      : plan_(plan), limits_(limits), masks_(plan.pool().size()) {
    for (const int id : plan.order()) {
      masks_[id].assign(plan.volume(id), limits.all());
    }
  }

  Masks run(int num_threads) {
    const std::vector<std::size_t> chosen = spread(limits_.weights);
    parallel_for(static_cast<int>(chosen.size()), num_threads, [&](int i) {
      const std::size_t w = chosen[i];
      MinPlusPass pass(plan_);
      pass.run_inside(limits_.weights[w]);
      pass.run_outside(limits_.highest(w));
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const int id : plan_.order()) clear(pass, w, id);
    });
    return std::move(masks_);
  }

 private:
  void clear(const MinPlusPass& pass, std::size_t w, int id) {
    const auto& inside = pass.inside(id);
    const auto& outside = pass.outside(id);
    const double highest = limits_.highest(w);
    for (std::size_t cell = 0; cell < inside.size(); ++cell) {
      const double bound = inside[cell] + outside[cell];
      std::uint64_t& mask = masks_[id][cell];
      mask = bound < highest ? limits_.above(w, bound, mask) : 0;
    }
  }

  const MinPlusPlan& plan_;
  const CornerLimits& limits_;
  std::mutex mutex_;
  Masks masks_;
};

}  // namespace

CornerLimits::CornerLimits(const std::vector<Weights>& all_weights,
                           const std::vector<Point>& corners)
    : weights(all_weights), num_corners(corners.size()) {
  TO_ASSERT(num_corners <= kMaxCorners, "{} corners", num_corners);
  for (const Weights& w : weights) {
    for (const Point& corner : corners) {
      values.push_back(
          (term(w.memory, corner.memory) + term(w.time, corner.time)) *
          (1 + kRounding));
    }
  }
}

std::uint64_t CornerLimits::all() const {
  return num_corners == kMaxCorners ? ~std::uint64_t{0}
                                    : (std::uint64_t{1} << num_corners) - 1;
}

std::uint64_t CornerLimits::above(std::size_t w, double value,
                                  std::uint64_t open) const {
  const double* limits = &values[w * num_corners];
  std::uint64_t result = open;
  for (; open != 0; open &= open - 1) {
    const int corner = std::countr_zero(open);
    if (!(value < limits[corner])) result &= ~(std::uint64_t{1} << corner);
  }
  return result;
}

double CornerLimits::highest(std::size_t w) const {
  const auto first = values.begin() + w * num_corners;
  return *std::max_element(first, first + num_corners);
}

void CornerLimits::tighten(std::span<const float> optima, double slack) {
  for (std::size_t corner = 0; corner < num_corners; ++corner) {
    const auto ratio = [&](std::size_t w) {
      return values[w * num_corners + corner] / optima[w];
    };
    std::size_t tightest = 0;
    for (std::size_t w = 1; w < weights.size(); ++w) {
      if (ratio(w) < ratio(tightest)) tightest = w;
    }
    double& limit = values[tightest * num_corners + corner];
    limit = std::min(limit, (1 + slack) * optima[tightest]);
  }
}

bool TableBounds::may_improve(int rank, Point point) const {
  if (unbounded()) return true;
  const std::span<const float> rest = outside(rank);
  std::uint64_t open = corners_[rank];
  for (std::size_t w = 0; w < rest.size() && open != 0; ++w) {
    open = limits_->above(w, limits_->weights[w].of(point) + rest[w], open);
  }
  return open != 0;
}

bool TableBounds::may_improve(int rank, const TableBounds& left, int left_rank,
                              const TableBounds& right, int right_rank) const {
  if (unbounded()) return true;
  const std::span<const float> rest = outside(rank);
  const std::span<const float> a = left.inside(left_rank);
  const std::span<const float> b = right.inside(right_rank);
  std::uint64_t open =
      corners_[rank] & left.corners_[left_rank] & right.corners_[right_rank];
  for (std::size_t w = 0; w < rest.size() && open != 0; ++w) {
    open = limits_->above(w, a[w] + b[w] + rest[w], open);
  }
  return open != 0;
}

std::size_t TableBounds::num_alive() const {
  return corners_.size() - std::count(corners_.begin(), corners_.end(), 0);
}

Bounds::Bounds(const MinPlusPlan& plan, const std::vector<Weights>& weights,
               const std::vector<Point>& corners, int num_threads)
    : plan_(plan),
      num_threads_(num_threads),
      limits_(weights, corners),
      tables_(plan.pool().size()) {
  const Masks masks = FirstPasses(plan, limits_).run(num_threads);
  for (const int id : plan.order()) {
    TableBounds& table = tables_[id];
    table.limits_ = &limits_;
    table.ranks_.assign(plan.volume(id), -1);
    for (std::size_t cell = 0; cell < table.ranks_.size(); ++cell) {
      if (masks[id][cell] == 0) continue;
      table.ranks_[cell] = static_cast<std::int32_t>(table.cells_.size());
      table.cells_.push_back(static_cast<std::uint32_t>(cell));
    }
  }
  SparseSweep(plan, limits_.weights, num_threads, tables_).run();
  aim(corners);
}

void Bounds::aim(const std::vector<Point>& corners, double slack) {
  limits_ = CornerLimits(limits_.weights, corners);
  const TableBounds& root = tables_[plan_.root()];
  if (std::isfinite(slack) && !root.cells_.empty()) {
    limits_.tighten(root.inside(0), slack);
  }
  parallel_for(static_cast<int>(plan_.order().size()), num_threads_,
               [&](int i) { aim_table(tables_[plan_.order()[i]]); });
}

void Bounds::aim_table(TableBounds& table) const {
  table.corners_.assign(table.cells_.size(), limits_.all());
  for (std::size_t rank = 0; rank < table.cells_.size(); ++rank) {
    const auto here = table.inside(static_cast<int>(rank));
    const auto rest = table.outside(static_cast<int>(rank));
    std::uint64_t& open = table.corners_[rank];
    for (std::size_t w = 0; w < here.size() && open != 0; ++w) {
      open = limits_.above(w, here[w] + rest[w], open);
    }
  }
}

std::int64_t Bounds::num_cells() const {
  std::int64_t count = 0;
  for (const int id : plan_.order()) {
    count += static_cast<std::int64_t>(tables_[id].num_cells());
  }
  return count;
}

std::int64_t Bounds::num_alive() const {
  std::int64_t count = 0;
  for (const int id : plan_.order()) {
    count += static_cast<std::int64_t>(tables_[id].num_alive());
  }
  return count;
}

}  // namespace tensoropt
