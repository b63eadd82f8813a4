#include <gtest/gtest.h>

#include <random>

#include "comm/base_mesh.h"
#include "comm/collective.h"
#include "common/check.h"

namespace tensoropt {
namespace {

constexpr std::array kAll{Collective::kAllReduce, Collective::kAllGather,
                          Collective::kReduceScatter, Collective::kAllToAll,
                          Collective::kBroadcast};

// Two machines of four devices; 1 GB/s and 10 us between the machines, 10 GB/s
// and 1 us inside. Axis 0 crosses machines, axes 1 and 2 do not.
Cluster two_by_four() {
  return {
      "2x4", Device{}, {{"machine", 2, 1e9, 10e-6}, {"gpu", 4, 10e9, 1e-6}}};
}

class AnalyticTest : public testing::Test {
 protected:
  Cluster cluster_ = two_by_four();
  Mesh mesh_ = base_mesh(cluster_);
  AnalyticCollectives model_{cluster_, mesh_};
};

TEST_F(AnalyticTest, RingInsideAMachine) {
  // 3/4 of 4 MB at 10 GB/s; two steps, as a ring over each axis in turn.
  EXPECT_NEAR(model_.time_s(Collective::kAllGather, 0b110, 4e6),
              3e6 / 10e9 + 2 * 1e-6, 1e-12);
  // Or one pair: half of the bytes.
  EXPECT_NEAR(model_.time_s(Collective::kReduceScatter, 0b100, 4e6),
              2e6 / 10e9 + 1e-6, 1e-12);
}

TEST_F(AnalyticTest, AllReduceIsScatterAndGather) {
  for (const AxisSet axes : {0b001u, 0b010u, 0b111u}) {
    EXPECT_DOUBLE_EQ(model_.time_s(Collective::kAllReduce, axes, 3e6),
                     2 * model_.time_s(Collective::kAllGather, axes, 3e6));
  }
}

TEST_F(AnalyticTest, GroupsOfAMachineShareItsLink) {
  // Axis 0 alone: each of the four groups sends half of the bytes, all through
  // one link of 1 GB/s.
  EXPECT_NEAR(model_.time_s(Collective::kAllGather, 0b001, 4e6),
              4 * 2e6 / 1e9 + 10e-6, 1e-12);
  // All axes: one group, whose machines exchange half of the bytes; then the
  // inner axes.
  EXPECT_NEAR(model_.time_s(Collective::kAllGather, 0b111, 4e3),
              2e3 / 1e9 + 10e-6 + 3e3 / 10e9 + 2 * 1e-6, 1e-12);
}

TEST_F(AnalyticTest, OneRingOverlapsLevelsOfEqualBandwidth) {
  cluster_.levels[1].bandwidth_bytes_per_s = 1e9;
  const AnalyticCollectives even(cluster_, mesh_);
  EXPECT_NEAR(even.time_s(Collective::kAllGather, 0b111, 8e9),
              7e9 / 1e9 + 7 * 10e-6, 1e-9);
}

TEST_F(AnalyticTest, AllToAllCountsWhatLeavesTheMachine) {
  // Eight ranks: each sends 1/8 to each of the four in the other machine; four
  // devices per link. Latency: four far messages, three near ones.
  EXPECT_NEAR(model_.time_s(Collective::kAllToAll, 0b111, 8e6),
              4 * 4e6 / 1e9 + 4 * 10e-6 + 3 * 1e-6, 1e-12);
}

TEST_F(AnalyticTest, CollectivesMayReachOtherFigures) {
  cluster_.levels[0].collectives = {{Collective::kAllToAll, {0.5e9, 30e-6}},
                                    {Collective::kAllReduce, {0.8e9, 40e-6}}};
  cluster_.levels[1].collectives = {{Collective::kBroadcast, {2e9, 4e-6}}};
  const AnalyticCollectives given(cluster_, mesh_);
  EXPECT_NEAR(given.time_s(Collective::kAllToAll, 0b111, 8e6),
              4 * 4e6 / 0.5e9 + 4 * 30e-6 + 3 * 1e-6, 1e-12);
  EXPECT_NEAR(given.time_s(Collective::kAllReduce, 0b001, 4e6),
              2 * (4 * 2e6 / 0.8e9 + 40e-6), 1e-12);
  EXPECT_NEAR(given.time_s(Collective::kBroadcast, 0b110, 4e6),
              4e6 / 2e9 + 3 * 4e-6, 1e-12);
  for (const auto collective :
       {Collective::kAllGather, Collective::kReduceScatter}) {
    for (AxisSet axes = 1; axes < 8; ++axes) {
      EXPECT_EQ(given.time_s(collective, axes, 3e6),
                model_.time_s(collective, axes, 3e6));
    }
  }
  // Inside a machine the figures of the level between machines do not matter.
  EXPECT_EQ(given.time_s(Collective::kAllToAll, 0b110, 3e6),
            model_.time_s(Collective::kAllToAll, 0b110, 3e6));
}

TEST_F(AnalyticTest, NothingToDoTakesNoTime) {
  for (const Collective collective : kAll) {
    EXPECT_EQ(model_.time_s(collective, 0, 1e6), 0);
  }
}

TEST_F(AnalyticTest, RejectsTheMeshOfAnotherCluster) {
  EXPECT_THROW(AnalyticCollectives(cluster_, Mesh({{2, 0}, {2, 1}})),
               UserError);
  EXPECT_THROW(AnalyticCollectives(cluster_, Mesh({{2, 0}, {4, 2}})),
               UserError);
}

Cluster random_cluster(std::mt19937& rng) {
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(rng);
  };
  Cluster cluster{"random", Device{}, {}};
  const int num_levels = std::uniform_int_distribution<int>(1, 3)(rng);
  const auto bandwidth = [&] { return std::pow(10, uniform(8, 12)); };
  const auto latency = [&] { return std::pow(10, uniform(-7, -4)); };
  for (int level = 0; level < num_levels; ++level) {
    const int counts[] = {1, 2, 3, 4, 6};
    const int count = counts[std::uniform_int_distribution<int>(0, 4)(rng)];
    Level& made = cluster.levels.emplace_back(
        Level{"level", count, bandwidth(), latency()});
    for (const Collective collective : kAll) {
      if (uniform(0, 1) < 0.2) {
        made.collectives[collective] = {bandwidth(), latency()};
      }
    }
  }
  return cluster;
}

TEST(AnalyticProperties, NeverFasterWithMoreBytes) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 rng(seed);
    const Cluster cluster = random_cluster(rng);
    const Mesh mesh = base_mesh(cluster);
    const AnalyticCollectives model(cluster, mesh);
    for (AxisSet axes = 1; axes >> mesh.num_axes() == 0; ++axes) {
      for (const Collective collective : kAll) {
        double before = 0;
        for (double bytes = 1; bytes < 1e10; bytes *= 3) {
          const double time_s = model.time_s(collective, axes, bytes);
          EXPECT_GT(time_s, before) << "seed " << seed << " axes " << axes;
          before = time_s;
        }
      }
    }
  }
}

TEST(AnalyticProperties, NeverFasterFurtherOut) {
  int compared = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 rng(seed);
    const Cluster cluster = random_cluster(rng);
    const Mesh mesh = base_mesh(cluster);
    const AnalyticCollectives model(cluster, mesh);
    for (AxisSet axes = 1; axes >> mesh.num_axes() == 0; ++axes) {
      for (int inner = 0; inner < mesh.num_axes(); ++inner) {
        for (int outer = 0; outer < inner; ++outer) {
          const AxisSet moved = axes ^ (1u << inner) ^ (1u << outer);
          if (!(axes >> inner & 1) || (axes >> outer & 1) ||
              mesh.size(inner) != mesh.size(outer)) {
            continue;
          }
          ++compared;
          for (const Collective collective : kAll) {
            for (const double bytes : {1.0, 1e4, 1e8}) {
              const double near_s = model.time_s(collective, axes, bytes);
              const double far_s = model.time_s(collective, moved, bytes);
              EXPECT_LE(near_s, far_s * (1 + 1e-12))
                  << "seed " << seed << " axes " << axes << " moved " << moved
                  << ' ' << to_string(collective) << ' ' << bytes;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 500);
}

TEST(Collective, NamesAreThoseOfTorch) {
  EXPECT_EQ(to_string(Collective::kAllReduce), "all_reduce");
  EXPECT_EQ(to_string(Collective::kBroadcast), "broadcast");
}

}  // namespace
}  // namespace tensoropt
