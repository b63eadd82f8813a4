#include "search/bounds/bounds.h"

#include <algorithm>
#include <utility>

#include "search/bounds/sparse_min_plus.h"

namespace tensoropt {

namespace {

// One cell in so many is looked at for an estimate.
constexpr std::size_t kSampled = 11;

}  // namespace

bool TableBounds::may_improve(int rank, Point point) const {
  if (unbounded()) return true;
  const std::span<const float> rest = outside(rank);
  std::uint64_t open = zones_[rank];
  for (std::size_t w = 0; w < rest.size() && open != 0; ++w) {
    open &= limits_->above(w, limits_->weights(w).of(point) + rest[w]);
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
      zones_[rank] & left.zones_[left_rank] & right.zones_[right_rank];
  for (std::size_t w = 0; w < rest.size() && open != 0; ++w) {
    open &= limits_->above(w, a[w] + b[w] + rest[w]);
  }
  return open != 0;
}

std::uint64_t TableBounds::open_zones(int rank,
                                      const ZoneLimits& limits) const {
  const std::span<const float> here = inside(rank);
  const std::span<const float> rest = outside(rank);
  std::uint64_t open = limits.all();
  for (std::size_t w = 0; w < here.size() && open != 0; ++w) {
    open &= limits.above(w, here[w] + rest[w]);
  }
  return open;
}

std::size_t TableBounds::num_alive() const {
  return zones_.size() - std::count(zones_.begin(), zones_.end(), 0);
}

Bounds::Bounds(const MinPlusGraph& graph, const WeightedProbe& probe,
               const ZoneLimits& probe_limits, const ZoneLimits& limits,
               Workers& workers)
    : graph_(graph),
      workers_(workers),
      limits_(limits),
      tables_(graph.pool().size()) {
  for (const int id : graph.order()) {
    TableBounds& table = tables_[id];
    table.limits_ = &limits_;
    table.ranks_.assign(graph.volume(id), -1);
    for (std::size_t cell = 0; cell < table.ranks_.size(); ++cell) {
      if (!probe.may_improve(id, cell, probe_limits)) continue;
      table.ranks_[cell] = static_cast<std::int32_t>(table.cells_.size());
      table.cells_.push_back(static_cast<std::uint32_t>(cell));
    }
  }
  SparseMinPlus(graph, limits_, workers, tables_).run();
}

void Bounds::tighten(const ZoneLimits& limits) {
  limits_ = limits;
  workers_.run(static_cast<int>(graph_.order().size()), [this](int i) {
    TableBounds& table = tables_[graph_.order()[i]];
    table.zones_.resize(table.cells_.size());
    for (std::size_t r = 0; r < table.cells_.size(); ++r) {
      table.zones_[r] = table.open_zones(static_cast<int>(r), limits_);
    }
  });
}

std::int64_t Bounds::estimate_alive(const ZoneLimits& limits) const {
  std::int64_t alive = 0;
  std::size_t rank = 0;  // over all tables
  for (const int id : graph_.order()) {
    const TableBounds& table = tables_[id];
    for (; rank < table.cells_.size(); rank += kSampled) {
      alive += table.open_zones(static_cast<int>(rank), limits) != 0 ? 1 : 0;
    }
    rank -= table.cells_.size();
  }
  return alive * static_cast<std::int64_t>(kSampled);
}

std::int64_t Bounds::num_alive() const {
  std::int64_t count = 0;
  for (const int id : graph_.order()) {
    count += static_cast<std::int64_t>(tables_[id].num_alive());
  }
  return count;
}

}  // namespace tensoropt
