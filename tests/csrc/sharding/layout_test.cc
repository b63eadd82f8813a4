#include "sharding/layout.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "common/check.h"

namespace tensoropt {
namespace {

Mesh mesh_2x3x2() { return Mesh({{2, 0}, {3, 1}, {2, 1}}); }

Layout random_layout(std::mt19937& random, int num_axes, int num_codes) {
  Layout layout = Layout::replicated(num_axes);
  for (int axis = 0; axis < num_axes; ++axis) {
    layout.set(axis,
               Placement::from_code(static_cast<int>(random() % num_codes)));
  }
  return layout;
}

TEST(Placement, KindsExcludeEachOther) {
  EXPECT_TRUE(Placement().is_replicate());
  EXPECT_TRUE(Placement::partial().is_partial());
  for (int dim = 0; dim <= Placement::kMaxDim; ++dim) {
    const Placement shard = Placement::shard(dim);
    EXPECT_TRUE(shard.is_shard() && shard.is_shard(dim));
    EXPECT_FALSE(shard.is_replicate() || shard.is_partial());
    EXPECT_FALSE(shard.is_shard(dim + 1));
    EXPECT_EQ(shard.dim(), dim);
    EXPECT_EQ(Placement::from_code(shard.code()), shard);
  }
  EXPECT_EQ(Placement::replicate().dim(), -1);
  EXPECT_EQ(Placement::partial().dim(), -1);
}

TEST(Layout, TextRoundTrips) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const int axes = static_cast<int>(random() % (Mesh::kMaxAxes + 1));
    const Layout layout = random_layout(random, axes, 16);
    EXPECT_EQ(Layout::parse(layout.to_string()), layout);
    EXPECT_EQ(Layout::parse(layout.to_string()).hash(), layout.hash());
  }
}

TEST(Layout, TextIsWhatItSays) {
  Layout layout = Layout::replicated(3);
  EXPECT_EQ(layout.to_string(), "R,R,R");
  layout.set(0, Placement::shard(12));
  layout.set(2, Placement::partial());
  EXPECT_EQ(layout.to_string(), "S12,R,P");
  layout.set(0, Placement::replicate());
  EXPECT_EQ(layout.to_string(), "R,R,P");
  EXPECT_EQ(Layout::replicated(0).to_string(), "");
}

TEST(Layout, ParseRefusesWhatIsNoLayout) {
  for (const char* text :
       {"S", "X", "S14", "S-1", "R,,P", "s0", "S0 ,R", "P0"}) {
    EXPECT_THROW(Layout::parse(text), UserError) << text;
  }
  std::string long_text = "R";
  for (int axis = 0; axis < Mesh::kMaxAxes; ++axis) long_text += ",R";
  EXPECT_THROW(Layout::parse(long_text), UserError);
}

TEST(Layout, DiffersFromLayoutsOfOtherMeshes) {
  EXPECT_NE(Layout::replicated(1), Layout::replicated(2));
}

TEST(Layout, AxisSetsPartitionTheAxes) {
  const Layout layout = Layout::parse("S1,R,P,S0,S1");
  EXPECT_EQ(layout.axes_sharding(1), 0b10001);
  EXPECT_EQ(layout.axes_sharding(0), 0b01000);
  EXPECT_EQ(layout.axes_sharding(2), 0);
  EXPECT_EQ(layout.partial_axes(), 0b00100);
  EXPECT_EQ(layout.replicate_axes(), 0b00010);
  EXPECT_TRUE(layout.has_partial());
  EXPECT_FALSE(Layout::parse("S1,R").has_partial());
}

TEST(Divides, NeedsExistingDimsAndEvenPieces) {
  const Mesh mesh = mesh_2x3x2();
  EXPECT_TRUE(divides(Shape{12, 5}, Layout::parse("S0,S0,S0"), mesh));
  EXPECT_FALSE(divides(Shape{6, 12}, Layout::parse("S0,S0,S0"), mesh));
  EXPECT_TRUE(divides(Shape{6, 2}, Layout::parse("S0,S0,S1"), mesh));
  EXPECT_FALSE(divides(Shape{6}, Layout::parse("S0,S0,S1"), mesh));
  EXPECT_TRUE(divides(Shape{}, Layout::parse("P,R,P"), mesh));
}

TEST(Divides, LeavesDimsOfSizeZeroWhole) {
  const Mesh mesh = mesh_2x3x2();
  EXPECT_TRUE(divides(Shape{4, 0}, Layout::parse("S0,R,S0"), mesh));
  EXPECT_FALSE(divides(Shape{4, 0}, Layout::parse("S0,R,S1"), mesh));
  EXPECT_EQ(local_shape(Shape{4, 0}, Layout::parse("S0,P,R"), mesh),
            (Shape{2, 0}));
}

TEST(LoneEntries, AreThoseOfSomeRanksOnly) {
  const Mesh mesh = mesh_2x3x2();
  const auto lone = [&](TensorMeta meta, const char* layout) {
    return has_lone_entry(meta, Layout::parse(layout), mesh);
  };
  EXPECT_TRUE(lone({{3, 8}}, "S0,R,R"));  // 2, 1
  EXPECT_FALSE(lone({{3, 8}}, "S1,R,R"));
  EXPECT_FALSE(lone({{3, 8}}, "R,S0,R"));                      // 1, 1, 1
  EXPECT_TRUE(lone({{8, 5}}, "R,S1,P"));                       // 2, 2, 1
  EXPECT_FALSE(lone({{8, 8}}, "R,S1,P"));                      // 3, 3, 2
  EXPECT_TRUE(lone({{8, 5}}, "S1,R,S1"));                      // 2, 1, 1, 1
  EXPECT_FALSE(lone({{12}, DType::kFloat32, {4}}, "S0,R,R"));  // 8, 4
  EXPECT_TRUE(lone({{10}}, "S0,S0,R"));
}

// The elements of one dim that a rank holds, by cutting the dim axis by axis,
// each time into chunks as long as the first one.
std::vector<std::int64_t> slice(std::int64_t size, const Layout& layout,
                                const Mesh& mesh, int dim, int rank) {
  std::vector<std::int64_t> held(size);
  std::iota(held.begin(), held.end(), 0);
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!layout[axis].is_shard(dim)) continue;
    std::vector<std::vector<std::int64_t>> chunks(mesh.size(axis));
    std::size_t block = 0;
    while (block * chunks.size() < held.size()) ++block;
    for (std::size_t i = 0; i < held.size(); ++i) {
      chunks[i / block].push_back(held[i]);
    }
    held = chunks[mesh.coordinate(rank, axis)];
  }
  return held;
}

TEST(LocalShapeAndRange, AreThoseOfSlicing) {
  const Mesh mesh = mesh_2x3x2();
  const Shape shape{12, 24, 5};
  for (unsigned seed = 1; seed <= 100; ++seed) {
    std::mt19937 random(seed);
    const Layout layout = random_layout(random, 3, 5);
    SCOPED_TRACE(layout.to_string() + ", seed " + std::to_string(seed));
    if (!divides(shape, layout, mesh)) continue;
    const Shape local = local_shape(shape, layout, mesh);
    EXPECT_EQ(num_elements(local) * num_shards(layout, mesh),
              num_elements(shape));
    for (int rank = 0; rank < mesh.num_devices(); ++rank) {
      for (int dim = 0; dim < 3; ++dim) {
        const auto held = slice(shape[dim], layout, mesh, dim, rank);
        const DimRange range = local_range(shape, layout, mesh, dim, rank);
        EXPECT_EQ(local[dim], static_cast<std::int64_t>(held.size()));
        EXPECT_EQ(range.begin, held.front());
        EXPECT_EQ(range.end, held.back() + 1);
      }
    }
  }
}

TEST(LocalShapeAndRange, OfSizesThatDoNotDivideAreThoseOfChunks) {
  const Mesh meshes[] = {mesh_2x3x2(), Mesh({{2, 0}, {2, 0}, {2, 0}}),
                         Mesh({{3, 0}, {2, 0}}), Mesh({{5, 0}})};
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const Mesh& mesh = meshes[random() % 4];
    const Shape shape{1 + static_cast<std::int64_t>(random() % 20),
                      1 + static_cast<std::int64_t>(random() % 60)};
    const Layout layout = random_layout(random, mesh.num_axes(), 4);
    SCOPED_TRACE(layout.to_string() + ", seed " + std::to_string(seed));
    bool any_empty[2] = {false, false};
    std::int64_t total = 0;
    for (int rank = 0; rank < mesh.num_devices(); ++rank) {
      const Shape local = local_shape(shape, layout, mesh, rank);
      total += num_elements(local);
      for (int dim = 0; dim < 2; ++dim) {
        const auto held = slice(shape[dim], layout, mesh, dim, rank);
        const DimRange range = local_range(shape, layout, mesh, dim, rank);
        EXPECT_EQ(local[dim], std::ssize(held));
        EXPECT_EQ(range.size(), std::ssize(held));
        EXPECT_LE(local[dim], local_shape(shape, layout, mesh)[dim]);
        any_empty[dim] = any_empty[dim] || held.empty();
        if (held.empty()) continue;
        EXPECT_EQ(range.begin, held.front());
        EXPECT_EQ(range.end, held.back() + 1);
      }
    }
    EXPECT_EQ(total, num_elements(shape) * mesh.num_devices() /
                         num_shards(layout, mesh));
    EXPECT_NEAR(
        shards_of_largest(shape, layout, mesh) *
            static_cast<double>(num_elements(local_shape(shape, layout, mesh))),
        static_cast<double>(num_elements(shape)), 1e-9);
    EXPECT_EQ(uneven_dims(shape, layout, mesh) == 0,
              divides(shape, layout, mesh));
    for (int dim = 0; dim < 2; ++dim) {
      EXPECT_EQ(has_empty_part(shape[dim], layout.axes_sharding(dim), mesh),
                any_empty[dim]);
    }
  }
}

TEST(LocalShape, OfADimThatDoesNotExistIsABug) {
  EXPECT_THROW(local_shape(Shape{5}, Layout::parse("S1"), Mesh({{2, 0}})),
               InternalError);
}

TEST(NumShards, CountsCutsOnly) {
  EXPECT_EQ(num_shards(Layout::parse("P,S0,S1"), mesh_2x3x2()), 6);
  EXPECT_EQ(num_shards(Layout::parse("P,R,P"), mesh_2x3x2()), 1);
}

}  // namespace
}  // namespace tensoropt
