#include "reshard/resharder.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <thread>

#include "comm/base_mesh.h"
#include "common/check.h"
#include "reshard/moves.h"
#include "reshard/simulation.h"

namespace tensoropt {
namespace {

using testing::all_layouts;
using testing::Simulation;

constexpr int kItemSize = 4;
// Steps are rounded to picoseconds and sums, below 1 ms, to float.
constexpr double kTolerance_s = 1e-10;
// As max_layouts, for the meshes and shapes below.
constexpr int kRestricted = 0;
constexpr int kTied = 40;

// Random but fixed times per (collective, axes): no structure to rely on.
class RandomModel : public CollectiveModel {
 public:
  explicit RandomModel(unsigned seed) : seed_(seed) {}
  double time_s(Collective collective, AxisSet axes,
                double bytes) const override {
    std::mt19937 rng(seed_ + 64 * axes + static_cast<int>(collective));
    std::uniform_real_distribution<double> uniform(1, 10);
    const double latency_s = 1e-6 * uniform(rng);
    return latency_s + bytes * 1e-8 * uniform(rng);
  }

 private:
  unsigned seed_;
};

class ConstantModel : public CollectiveModel {
 public:
  double time_s(Collective, AxisSet, double) const override { return 1; }
};

Device test_device() {
  Device device;
  device.launch_overhead_s = 1e-6;
  device.memory_bandwidth_bytes_per_s = 1e9;
  device.memory_efficiency = 1;
  return device;
}

// The time of a step, from the definitions.
double step_time_s(const Step& step, const Layout& before, const Shape& shape,
                   const Mesh& mesh, const CollectiveModel& model) {
  const auto bytes_in = [&](const Layout& layout) {
    return static_cast<double>(num_elements(local_shape(shape, layout, mesh))) *
           kItemSize;
  };
  const double input = bytes_in(before);
  const double output = bytes_in(apply(step, before));
  const auto copy = [&](double bytes) {
    return test_device().memory_time_s(2 * bytes);
  };
  switch (step.kind) {
    case StepKind::kAllGather:
      return model.time_s(Collective::kAllGather, step.axes, output) +
             (step.dim > 0 ? copy(output) : 0);
    case StepKind::kReduceScatter:
      return model.time_s(Collective::kReduceScatter, step.axes, input) +
             (step.dim > 0 ? copy(input) : 0);
    case StepKind::kAllReduce:
      return model.time_s(Collective::kAllReduce, step.axes, input);
    case StepKind::kAllToAll:
      return model.time_s(Collective::kAllToAll, step.axes, input) +
             (step.dim > 0 ? copy(input) : 0) +
             (step.to_dim > 0 ? copy(input) : 0);
    default:
      return copy(output);
  }
}

using Distances = std::vector<std::vector<double>>;

// All shortest paths by Floyd and Warshall over pairs of layouts.
Distances all_distances(const std::vector<Layout>& layouts, const Shape& shape,
                        const Mesh& mesh, const CollectiveModel& model) {
  const std::size_t n = layouts.size();
  Distances best(
      n, std::vector<double>(n, std::numeric_limits<double>::infinity()));
  for (std::size_t i = 0; i < n; ++i) {
    best[i][i] = 0;
    for (std::size_t j = 0; j < n; ++j) {
      const auto step = step_between(layouts[i], layouts[j]);
      if (!step || !legal(*step, layouts[i], shape, mesh)) continue;
      best[i][j] = step_time_s(*step, layouts[i], shape, mesh, model);
    }
  }
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        best[i][j] = std::min(best[i][j], best[i][k] + best[k][j]);
      }
    }
  }
  return best;
}

struct Case {
  Mesh mesh;
  Shape shape;
};

std::vector<Case> small_cases() {
  return {{Mesh({{2, 0}}), {4, 2}},
          {Mesh({{2, 0}}), {2, 4, 2}},
          {Mesh({{4, 0}}), {4, 8}},
          {Mesh({{3, 0}}), {3, 6}},
          {Mesh({{2, 0}, {2, 1}}), {4, 8}},
          {Mesh({{2, 0}, {2, 0}}), {4, 6, 2}},
          {Mesh({{2, 0}, {3, 0}}), {6, 4}},
          {Mesh({{2, 0}, {3, 1}}), {12, 6}},
          {Mesh({{2, 0}, {2, 1}, {2, 1}}), {8, 4}},
          {Mesh({{2, 0}, {2, 0}, {2, 0}}), {2, 8}}};
}

class ResharderTest : public ::testing::TestWithParam<int> {
 protected:
  // The limit that selects the exact, the tied or the restricted search.
  int limit() const { return GetParam(); }
};

TEST_P(ResharderTest, ProgramsGiveTheDataOfTheTarget) {
  const RandomModel model(1);
  for (const auto& [mesh, shape] : small_cases()) {
    const TensorResharder resharder(mesh, model, test_device(), shape,
                                    kItemSize, limit());
    const auto layouts = all_layouts(mesh, shape);
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        Simulation simulation(mesh, shape, from);
        const Steps& steps = resharder.path(from, to).steps;
        simulation.run(steps);
        ASSERT_TRUE(simulation.holds(to))
            << from.to_string() << " -> " << to.to_string() << ": "
            << to_string(steps);
      }
    }
  }
}

TEST_P(ResharderTest, RandomPairsOnBiggerMeshes) {
  const RandomModel model(2);
  const Case cases[] = {{Mesh({{2, 0}, {2, 1}, {2, 1}}), {4, 8, 2}},
                        {Mesh({{2, 0}, {2, 0}, {3, 1}}), {12, 6, 4}},
                        {Mesh({{2, 0}, {2, 1}, {2, 1}, {2, 1}}), {16, 8}}};
  for (const auto& [mesh, shape] : cases) {
    const TensorResharder resharder(mesh, model, test_device(), shape,
                                    kItemSize, limit());
    const auto layouts = all_layouts(mesh, shape);
    for (unsigned seed = 0; seed < 500; ++seed) {
      std::mt19937 rng(seed);
      std::uniform_int_distribution<std::size_t> any(0, layouts.size() - 1);
      const Layout from = layouts[any(rng)];
      const Layout to = layouts[any(rng)];
      Simulation simulation(mesh, shape, from, seed);
      const Steps& steps = resharder.path(from, to).steps;
      simulation.run(steps);
      ASSERT_TRUE(simulation.holds(to))
          << "seed " << seed << ": " << from.to_string() << " -> "
          << to.to_string() << ": " << to_string(steps);
    }
  }
}

TEST_P(ResharderTest, TimeIsTheSumOfTheSteps) {
  const RandomModel model(3);
  for (const auto& [mesh, shape] : small_cases()) {
    const TensorResharder resharder(mesh, model, test_device(), shape,
                                    kItemSize, limit());
    const auto layouts = all_layouts(mesh, shape);
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        const TensorResharder::Path& path = resharder.path(from, to);
        double sum = 0;
        Layout layout = from;
        for (const Step& step : path.steps) {
          ASSERT_TRUE(legal(step, layout, shape, mesh)) << to_string(step);
          sum += step_time_s(step, layout, shape, mesh, model);
          layout = apply(step, layout);
        }
        ASSERT_EQ(layout, to);
        ASSERT_NEAR(path.time_s, sum, kTolerance_s);
        ASSERT_EQ(path.time_s, resharder.time_s(from, to));
      }
    }
  }
}

TEST_P(ResharderTest, EqualLayoutsNeedNothing) {
  const Mesh mesh({{2, 0}});
  const TensorResharder resharder(mesh, RandomModel(0), test_device(), {4},
                                  kItemSize, limit());
  const Layout layout = Layout::parse("S0");
  EXPECT_TRUE(resharder.path(layout, layout).steps.empty());
  EXPECT_EQ(resharder.time_s(layout, layout), 0);
}

// Parts that differ: the data come out right, and every time is at least that
// of equal parts.
TEST_P(ResharderTest, UnevenPathsGiveTheLayouts) {
  const RandomModel model(5);
  const std::vector<Case> cases{{Mesh({{2, 0}, {2, 1}}), {7, 6}},
                                {Mesh({{2, 0}, {2, 1}}), {5, 4}},
                                {Mesh({{2, 0}, {3, 1}}), {11, 7}},
                                {Mesh({{3, 0}}), {5, 4}},
                                {Mesh({{2, 0}, {2, 0}, {2, 0}}), {13, 8}}};
  for (const auto& [mesh, shape] : cases) {
    const TensorResharder resharder(mesh, model, test_device(), shape,
                                    kItemSize, limit(), kAllDims, kAllDims);
    const auto layouts = all_layouts(mesh, shape, /*uneven=*/true);
    ASSERT_GT(layouts.size(), all_layouts(mesh, shape).size());
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        const TensorResharder::Path& path = resharder.path(from, to);
        Simulation simulation(mesh, shape, from);
        simulation.run(path.steps);
        ASSERT_TRUE(simulation.holds(to))
            << from.to_string() << " to " << to.to_string() << ": "
            << to_string(path.steps);
        double least_s = 0;
        Layout layout = from;
        for (const Step& step : path.steps) {
          least_s += step_time_s(step, layout, shape, mesh, model);
          layout = apply(step, layout);
        }
        ASSERT_GE(path.time_s, least_s - kTolerance_s);
        ASSERT_LE(path.time_s, 4 * least_s + kTolerance_s);
      }
    }
  }
}

TEST_P(ResharderTest, OnlyNamedDimsHavePartsThatDiffer) {
  const Mesh mesh({{2, 0}});
  const TensorResharder resharder(mesh, RandomModel(0), test_device(), {5, 7},
                                  kItemSize, limit(), kAllDims, 0b01);
  const Layout whole = Layout::parse("R");
  EXPECT_EQ(resharder.path(whole, Layout::parse("S0")).steps.size(), 1U);
  EXPECT_THROW(resharder.path(whole, Layout::parse("S1")), UserError);
}

TEST_P(ResharderTest, RejectsLayoutsThatDoNotFit) {
  const Mesh mesh({{2, 0}, {2, 0}});
  const TensorResharder resharder(mesh, RandomModel(0), test_device(), {6, 3},
                                  kItemSize, limit());
  const Layout good = Layout::parse("R,S0");
  for (const char* text : {"S0,S0", "S1,R", "S2,R", "R", "R,R,R"}) {
    const Layout bad = Layout::parse(text);
    EXPECT_THROW(resharder.path(good, bad), UserError) << text;
    EXPECT_THROW(resharder.path(bad, good), UserError) << text;
    EXPECT_THROW(resharder.path(bad, bad), UserError) << text;
    EXPECT_THROW(resharder.time_s(good, bad), UserError) << text;
    EXPECT_THROW(resharder.time_s(bad, good), UserError) << text;
    EXPECT_THROW(resharder.time_s(bad, bad), UserError) << text;
  }
}

TEST_P(ResharderTest, ThreadsAgree) {
  const Mesh mesh({{2, 0}, {2, 1}, {2, 1}});
  const Shape shape{8, 8};
  const RandomModel model(4);
  const auto make = [&] {
    return TensorResharder(mesh, model, test_device(), shape, kItemSize,
                           limit());
  };
  const auto layouts = all_layouts(mesh, shape);
  const TensorResharder shared = make();
  const auto ask_all = [&] {
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) shared.path(from, to);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back(ask_all);
  }
  const TensorResharder alone = make();
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      EXPECT_EQ(shared.path(from, to).steps, alone.path(from, to).steps);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ResharderTest,
                         ::testing::Values(TensorResharder::kMaxLayouts, kTied,
                                           kRestricted),
                         [](const auto& info) {
                           return info.param == kRestricted ? "Restricted"
                                  : info.param == kTied     ? "Tied"
                                                            : "Exact";
                         });

TEST(ExactResharder, NoPathOverAnyLayoutIsFaster) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    const RandomModel model(seed);
    for (const auto& [mesh, shape] : small_cases()) {
      const TensorResharder resharder(mesh, model, test_device(), shape,
                                      kItemSize);
      ASSERT_TRUE(resharder.is_exact());
      const auto layouts = all_layouts(mesh, shape);
      const Distances best = all_distances(layouts, shape, mesh, model);
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        for (std::size_t j = 0; j < layouts.size(); ++j) {
          ASSERT_NEAR(resharder.time_s(layouts[i], layouts[j]), best[i][j],
                      kTolerance_s)
              << "seed " << seed << ' ' << layouts[i].to_string() << " -> "
              << layouts[j].to_string();
        }
      }
    }
  }
}

// The layouts with R or a placement of the two ends on every axis.
std::vector<Layout> layouts_between(const std::vector<Layout>& layouts,
                                    const Layout& from, const Layout& to) {
  std::vector<Layout> kept;
  for (const Layout& layout : layouts) {
    bool between = true;
    for (int axis = 0; axis < layout.num_axes(); ++axis) {
      between &= layout[axis].is_replicate() || layout[axis] == from[axis] ||
                 layout[axis] == to[axis];
    }
    if (between) kept.push_back(layout);
  }
  return kept;
}

TEST(RestrictedResharder, NoPathOverPlacementsOfTheEndsIsFaster) {
  // No two axes are alike, so none are tied together.
  const Mesh mesh({{2, 0}, {2, 1}, {2, 2}});
  const Shape shape{8, 4};
  const auto layouts = all_layouts(mesh, shape);
  for (unsigned seed = 0; seed < 3; ++seed) {
    const RandomModel model(seed);
    const TensorResharder resharder(mesh, model, test_device(), shape,
                                    kItemSize, kRestricted);
    ASSERT_FALSE(resharder.is_exact());
    std::mt19937 rng(seed);
    for (int i = 0; i < 200; ++i) {
      const Layout from = layouts[rng() % layouts.size()];
      const Layout to = layouts[rng() % layouts.size()];
      const auto between = layouts_between(layouts, from, to);
      const Distances best = all_distances(between, shape, mesh, model);
      const auto at = [&](const Layout& layout) {
        return std::find(between.begin(), between.end(), layout) -
               between.begin();
      };
      EXPECT_NEAR(resharder.time_s(from, to), best[at(from)][at(to)],
                  kTolerance_s)
          << "seed " << seed << ' ' << from.to_string() << " -> "
          << to.to_string();
    }
  }
}

// The layouts in which axes that the two ends do not tell apart agree.
std::vector<Layout> layouts_tied_by(const std::vector<Layout>& layouts,
                                    const Mesh& mesh, const Layout& from,
                                    const Layout& to) {
  std::vector<Layout> kept;
  for (const Layout& layout : layouts) {
    bool tied = true;
    for (int axis = 1; axis < layout.num_axes(); ++axis) {
      const bool told_apart = !mesh.alike(axis - 1, axis) ||
                              from[axis - 1] != from[axis] ||
                              to[axis - 1] != to[axis];
      tied &= told_apart || layout[axis - 1] == layout[axis];
    }
    if (tied) kept.push_back(layout);
  }
  return kept;
}

TEST(TiedResharder, NoPathOverTiedLayoutsIsFaster) {
  const Mesh mesh({{2, 0}, {2, 0}, {2, 0}, {2, 1}});
  const Shape shape{16, 16};
  const auto layouts = all_layouts(mesh, shape);
  for (unsigned seed = 0; seed < 3; ++seed) {
    const RandomModel model(seed);
    const TensorResharder resharder(mesh, model, test_device(), shape,
                                    kItemSize,
                                    static_cast<int>(layouts.size()) - 1);
    ASSERT_FALSE(resharder.is_exact());
    std::mt19937 rng(seed);
    for (int i = 0; i < 100;) {
      const Layout from = layouts[rng() % layouts.size()];
      const Layout to = layouts[rng() % layouts.size()];
      const auto tied = layouts_tied_by(layouts, mesh, from, to);
      if (tied.size() == layouts.size()) continue;
      ++i;
      const Distances best = all_distances(tied, shape, mesh, model);
      const auto at = [&](const Layout& layout) {
        return std::find(tied.begin(), tied.end(), layout) - tied.begin();
      };
      EXPECT_NEAR(resharder.time_s(from, to), best[at(from)][at(to)],
                  kTolerance_s)
          << "seed " << seed << ' ' << from.to_string() << " -> "
          << to.to_string();
    }
  }
}

TEST(ExactResharder, SlicesInsideAMachineWhatCrossesTheNetwork) {
  // Axis 0 crosses machines over one slow link that 8 devices share. Instead
  // of all of them sending everything, each sends an eighth.
  const Cluster cluster{"2x8",
                        test_device(),
                        {{"machine", 2, 1e9, 1e-6}, {"gpu", 8, 100e9, 1e-6}}};
  const Mesh mesh = base_mesh(cluster);
  const AnalyticCollectives model(cluster, mesh);
  Device device = test_device();
  device.memory_bandwidth_bytes_per_s = 1e12;
  const TensorResharder exact(mesh, model, device, {1024, 1024}, kItemSize);
  const TensorResharder restricted(mesh, model, device, {1024, 1024}, kItemSize,
                                   kRestricted);
  const Layout from = Layout::parse("P,R,R,R");
  const Layout to = Layout::parse("R,R,R,R");
  EXPECT_EQ(to_string(exact.path(from, to).steps),
            "slice(dim 0, axes 0b1110); all_reduce(axes 0b1); all_gather(dim "
            "0, axes 0b1110)");
  EXPECT_LT(exact.time_s(from, to), restricted.time_s(from, to) / 6);
}

TEST(ExactResharder, NothingIsSentOfATensorWithoutElements) {
  const Mesh mesh({{2, 0}, {2, 1}});
  const ConstantModel model;
  Device device;
  device.launch_overhead_s = 0;
  const TensorResharder resharder(mesh, model, device, {8, 4, 0}, kItemSize);
  const Layout from = Layout::parse("S0,P");
  const Layout to = Layout::parse("R,S1");
  EXPECT_LE(resharder.time_s(from, to), 10 * kTolerance_s);
  EXPECT_FALSE(resharder.path(from, to).steps.empty());
  EXPECT_THROW(resharder.path(from, Layout::parse("R,S2")), UserError);
}

TEST(ExactResharder, TiesGoToFewerStepsThenSmallerLayouts) {
  const Mesh mesh({{2, 0}, {2, 0}});
  Device device;
  device.launch_overhead_s = 0;
  const ConstantModel model;
  const TensorResharder resharder(mesh, model, device, {4, 4}, kItemSize);
  // One collective over both axes, not two.
  EXPECT_EQ(
      to_string(
          resharder.path(Layout::parse("P,P"), Layout::parse("R,R")).steps),
      "all_reduce(axes 0b11)");
  // Either may come first; "P,R" is smaller than "R,S0", as layouts compare
  // the last axis first.
  EXPECT_EQ(
      to_string(
          resharder.path(Layout::parse("P,S0"), Layout::parse("R,R")).steps),
      "all_gather(dim 0, axes 0b10); all_reduce(axes 0b1)");
}

}  // namespace
}  // namespace tensoropt
