#include "search/quick_probe.h"

#include <limits>
#include <utility>
#include <vector>

namespace tensoropt {

namespace {

// Of the tables of a schedule: beyond that a pass is no quick look.
constexpr double kMostCells = 1e8;

}  // namespace

std::unique_ptr<QuickProbe> QuickProbe::of(const Problem& problem,
                                           Algorithm algorithm,
                                           int num_threads) {
  ScheduleOptions quick{algorithm};
  quick.budget = {{.max_work = std::numeric_limits<double>::infinity(),
                   .max_cells = kMostCells}};
  auto solution =
      std::make_unique<Solution>(problem, std::vector<int>{}, quick);
  if (!solution->has_schedule() || solution->schedule().cells > kMostCells) {
    return nullptr;
  }
  solution->load_tables();
  return std::unique_ptr<QuickProbe>(
      new QuickProbe(std::move(solution), num_threads));
}

QuickProbe::QuickProbe(std::unique_ptr<Solution> solution, int num_threads)
    : solution_(std::move(solution)),
      workers_(num_threads),
      graph_(solution_->pool(), solution_->root(), solution_->tables()),
      probe_(graph_, solution_->schedule(), workers_, memory_,
             Depth::kNothing) {}

}  // namespace tensoropt
