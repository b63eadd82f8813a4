// Frontiers of small models on two devices, in one, two or four micro-batches,
// against every combination of layouts, of what runs again in backward, of
// tensor reuse, and of what micro-batches share.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "comm/collective.h"
#include "common/str_format.h"
#include "problem/brute_force.h"
#include "search/frontier_tracking.h"
#include "space/random_model.h"
#include "space/space.h"
#include "space/space_problem.h"

namespace tensoropt {
namespace {

using testing::brute_force;
using testing::Cost;
using testing::covers;
using testing::pareto;
using testing::points_of;
using testing::RandomModel;

constexpr int kModels = 200;
constexpr std::int64_t kBatch = 64;
constexpr double kMostCombinations = 2e4;
constexpr double kEpsilon = 0.05;

double num_combinations(const Problem& problem) {
  double count = 1;
  for (const auto& node : problem.nodes) count *= node->num_configs();
  return count;
}

// Whether a point needs at most `factor` of the memory and (1 + e) of the time.
bool is_met(const std::vector<Cost>& points, const Cost& cost, double factor) {
  constexpr double kRounding = 1 + 1e-9;
  return std::any_of(points.begin(), points.end(), [&](const Cost& point) {
    return point.memory <= cost.memory * factor * kRounding &&
           point.time <= cost.time * (1 + kEpsilon) * kRounding;
  });
}

// Points of all numbers of micro-batches, and which of them they are from.
struct United {
  std::vector<Cost> costs;
  std::vector<int> from;

  void add(const std::vector<Cost>& others, int micro_batches) {
    costs.insert(costs.end(), others.begin(), others.end());
    from.insert(from.end(), others.size(), micro_batches);
  }
  // How many numbers of micro-batches are on the frontier.
  int num_useful() const {
    const std::vector<Cost> best = pareto(costs);
    std::vector<int> useful;
    for (std::size_t i = 0; i < costs.size(); ++i) {
      if (std::find(best.begin(), best.end(), costs[i]) != best.end()) {
        useful.push_back(from[i]);
      }
    }
    std::sort(useful.begin(), useful.end());
    return static_cast<int>(std::unique(useful.begin(), useful.end()) -
                            useful.begin());
  }
};

TEST(SpaceBruteForce, FrontiersAreThoseOfAllLayoutsStatesAndMicroBatches) {
  const Mesh mesh({{2, 0}});
  Device device;
  device.launch_overhead_s = 1e-6;
  const Cluster cluster{"two", device, {{"gpu", 2, 1e9, 1e-6}}};
  const AnalyticCollectives collectives{cluster, mesh};
  int compared = 0;
  int several = 0;
  for (int seed = 0; seed < kModels; ++seed) {
    SCOPED_TRACE(str_format("seed {}", seed));
    United expected, found;
    SearchOptions loose;
    loose.epsilon = kEpsilon;
    bool small = true;
    for (const int count : {1, 2, 4}) {
      const RandomModel model(seed, kBatch / count, 1, 3);
      SpaceOptions options;
      options.recompute = true;
      const StrategySpace space(model.graph, builtin_registry(),
                                Machine{mesh, device, collectives}, options);
      const Problem problem =
          SpaceProblem(space, {.micro_batches = count}).build(1);
      small = small && num_combinations(problem) <= kMostCombinations;
      if (!small) break;
      const std::vector<Cost> all = brute_force(problem);
      expected.add(all, count);
      const SearchResult exact = search(problem, {});
      ASSERT_TRUE(exact.exact());
      found.add(points_of(exact), count);
      // A limit somewhere in the frontier, which is kept exactly.
      loose.pick_limits = {all[all.size() / 2].memory};
      const std::vector<Cost> bounded = points_of(search(problem, loose));
      for (const Cost& cost : all) {
        const double within = cost == all[all.size() / 2] ? 1 : 1 + kEpsilon;
        EXPECT_TRUE(is_met(bounded, cost, within));
      }
    }
    if (!small) continue;
    EXPECT_TRUE(covers(pareto(found.costs), pareto(expected.costs)));
    EXPECT_TRUE(covers(pareto(expected.costs), pareto(found.costs)));
    ++compared;
    several += expected.num_useful() > 1 ? 1 : 0;
  }
  EXPECT_GT(compared, kModels / 2);
  EXPECT_GT(several, kModels / 4);
}

}  // namespace
}  // namespace tensoropt
