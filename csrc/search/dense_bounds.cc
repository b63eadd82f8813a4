#include "search/dense_bounds.h"

#include <limits>

#include "common/parallel.h"

namespace tensoropt {

namespace {

// More weightings rule out more cells, but take longer.
constexpr std::size_t kNumChosen = 8;
// One cell in so many is looked at for an estimate; prime, to be in step with
// no table.
constexpr std::size_t kSampled = 37;

}  // namespace

DenseBounds::DenseBounds(const MinPlusPlan& plan, const CornerLimits& limits,
                         int num_threads)
    : plan_(plan),
      chosen_(limits.tightest(kNumChosen)),
      costs_(plan.pool().size()) {
  const std::size_t width = chosen_.size();
  for (const int id : plan.order()) {
    costs_[id].resize(plan.volume(id) * width);
  }
  parallel_for(static_cast<int>(width), num_threads, [&](int i) {
    MinPlusPass pass(plan);
    pass.run_inside(limits.weights(chosen_[i]));
    pass.run_outside();
    for (const int id : plan.order()) {
      const auto& inside = pass.inside(id);
      const auto& outside = pass.outside(id);
      for (std::size_t cell = 0; cell < inside.size(); ++cell) {
        costs_[id][cell * width + i] =
            static_cast<float>(inside[cell] + outside[cell]);
      }
    }
  });
}

bool DenseBounds::may_improve(int id, std::size_t cell,
                              const CornerLimits& limits) const {
  const float* costs = &costs_[id][cell * chosen_.size()];
  std::uint64_t open = limits.all();
  for (std::size_t i = 0; i < chosen_.size() && open != 0; ++i) {
    open = limits.above(chosen_[i], costs[i], open);
  }
  return open != 0;
}

std::int64_t DenseBounds::estimate_alive(const CornerLimits& limits) const {
  std::int64_t alive = 0;
  std::size_t cell = 0;  // over all tables
  for (const int id : plan_.order()) {
    const std::size_t volume = plan_.volume(id);
    for (; cell < volume; cell += kSampled) {
      alive += may_improve(id, cell, limits) ? 1 : 0;
    }
    cell -= volume;
  }
  return alive * static_cast<std::int64_t>(kSampled);
}

}  // namespace tensoropt
