#include "search/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>

#include "common/check.h"
#include "common/parallel.h"

namespace tensoropt {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Corners are moved outwards by this factor to be safe from rounding.
constexpr double kRounding = 1e-9;

using Masks = std::vector<std::vector<std::uint64_t>>;  // by expression, cell

double product(double weight, double cost) {
  return weight == 0 ? 0 : weight * cost;
}

float round_down(double value) {
  const auto nearest = static_cast<float>(value);
  return static_cast<double>(nearest) <= value
             ? nearest
             : std::nextafter(nearest, -std::numeric_limits<float>::infinity());
}

std::uint64_t all_corners(std::size_t count) {
  return count == kMaxCorners ? ~std::uint64_t{0}
                              : (std::uint64_t{1} << count) - 1;
}

}  // namespace

std::vector<Corner> corners_between(
    const std::vector<KnownStrategy>& strategies, double epsilon,
    double memory_limit) {
  std::vector<Corner> corners;
  const double factor = 1 + epsilon;
  const auto add = [&](double memory, double time, Point behind, Point below) {
    memory /= factor;
    time /= factor;
    if (memory > behind.memory && time > below.time) {
      corners.push_back({memory, time});
    }
  };
  for (std::size_t i = 0; i < strategies.size(); ++i) {
    const Point here = strategies[i].cost;
    if (here.memory > memory_limit) break;
    if (i + 1 == strategies.size()) break;  // nothing is faster than the last
    const Point next = strategies[i + 1].cost;
    if (next.memory <= memory_limit) {
      add(next.memory, here.time, here, next);
    } else {
      // Known strategies above the limit do not count.
      corners.push_back({memory_limit * (1 + kRounding), here.time / factor});
    }
  }
  while (corners.size() > kMaxCorners) {
    std::vector<Corner> joined;
    for (std::size_t i = 0; i < corners.size(); i += 2) {
      const Corner& last = corners[std::min(i + 1, corners.size() - 1)];
      joined.push_back({last.memory, corners[i].time});
    }
    corners = std::move(joined);
  }
  return corners;
}

bool TableBounds::may_improve(int rank, Point point) const {
  if (unbounded()) return true;
  const std::size_t num_weights = limits_->weights.size();
  const float* outside = &outside_[rank * num_weights];
  std::uint64_t left = corners_[rank];
  for (std::size_t w = 0; w < num_weights && left != 0; ++w) {
    const double bound = limits_->weights[w].of(point) + outside[w];
    const double* limits = &limits_->values[w * limits_->num_corners];
    for (std::uint64_t open = left; open != 0; open &= open - 1) {
      const int corner = __builtin_ctzll(open);
      if (!(bound < limits[corner])) left &= ~(std::uint64_t{1} << corner);
    }
  }
  return left != 0;
}

// Runs the passes of all weightings, twice: the first round finds the cells
// alive, the second one how far they are from the corners.
class BoundsBuilder {
 public:
  BoundsBuilder(const MinPlusPlan& plan, const TableBounds::Limits& limits,
                int num_threads)
      : plan_(plan), limits_(limits), num_threads_(num_threads) {}

  std::vector<TableBounds> run() {
    alive_.resize(plan_.pool().size());
    for (const int id : plan_.order()) {
      alive_[id].assign(plan_.volume(id), all_corners(limits_.num_corners));
    }
    run_round(/*is_last=*/false);
    start_tables();
    run_round(/*is_last=*/true);
    finish_tables();
    return std::move(tables_);
  }

 private:
  void run_round(bool is_last) {
    const Masks before = alive_;
    parallel_for(static_cast<int>(limits_.weights.size()), num_threads_,
                 [&](int w) {
                   MinPlusPass pass(plan_);
                   pass.run_inside(limits_.weights[w],
                                   is_last ? before : Masks{});
                   const double* row = &limits_.values[w * limits_.num_corners];
                   pass.run_outside(
                       *std::max_element(row, row + limits_.num_corners));
                   if (is_last) store_outside(pass, w);
                   const std::lock_guard<std::mutex> lock(mutex_);
                   for (const int id : plan_.order()) clear(pass, id, row);
                 });
  }

  // Clears the corners that this weighting excludes.
  void clear(const MinPlusPass& pass, int id, const double* limits) {
    const auto& inside = pass.inside(id);
    const auto& outside = pass.outside(id);
    for (std::size_t cell = 0; cell < inside.size(); ++cell) {
      std::uint64_t& alive = alive_[id][cell];
      const double bound = inside[cell] + outside[cell];
      if (std::isinf(bound)) alive = 0;
      for (std::uint64_t open = alive; open != 0; open &= open - 1) {
        const int corner = __builtin_ctzll(open);
        if (!(bound < limits[corner])) alive &= ~(std::uint64_t{1} << corner);
      }
    }
  }

  void start_tables() {
    tables_.resize(plan_.pool().size());
    for (const int id : plan_.order()) {
      TableBounds table(&limits_);
      table.ranks_.assign(plan_.volume(id), -1);
      int count = 0;
      for (std::size_t cell = 0; cell < table.ranks_.size(); ++cell) {
        if (alive_[id][cell] != 0) table.ranks_[cell] = count++;
      }
      table.corners_.resize(count);
      table.outside_.resize(count * limits_.weights.size());
      tables_[id] = std::move(table);
    }
  }

  void store_outside(const MinPlusPass& pass, int w) {
    for (const int id : plan_.order()) {
      TableBounds& table = tables_[id];
      for (std::size_t cell = 0; cell < table.ranks_.size(); ++cell) {
        const int rank = table.ranks_[cell];
        if (rank < 0) continue;
        table.outside_[rank * limits_.weights.size() + w] =
            round_down(pass.outside(id)[cell]);
      }
    }
  }

  void finish_tables() {
    for (const int id : plan_.order()) {
      TableBounds& table = tables_[id];
      for (std::size_t cell = 0; cell < table.ranks_.size(); ++cell) {
        std::int32_t& rank = table.ranks_[cell];
        if (rank < 0) continue;
        table.corners_[rank] = alive_[id][cell];
        if (alive_[id][cell] == 0) {
          rank = -1;
        } else {
          ++table.num_alive_;
        }
      }
    }
  }

  const MinPlusPlan& plan_;
  const TableBounds::Limits& limits_;
  const int num_threads_;
  std::mutex mutex_;
  Masks alive_;
  std::vector<TableBounds> tables_;
};

Bounds::Bounds(const MinPlusPlan& plan, const std::vector<Weights>& weights,
               const std::vector<Corner>& corners, int num_threads)
    : limits_{weights, corners.size(), {}} {
  TO_ASSERT(corners.size() <= kMaxCorners, "{} corners", corners.size());
  for (const Weights& w : weights) {
    for (const Corner& corner : corners) {
      limits_.values.push_back((product(w.memory, corner.memory) +
                                product(w.time, corner.time)) *
                               (1 + kRounding));
    }
  }
  tables_ = BoundsBuilder(plan, limits_, num_threads).run();
  for (const int id : plan.order()) {
    num_cells_ += tables_[id].num_cells();
    num_alive_ += tables_[id].num_alive();
  }
}

}  // namespace tensoropt
