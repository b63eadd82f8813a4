#include "cost/op_cost.h"

#include <gtest/gtest.h>

#include <random>

#include "common/check.h"

namespace tensoropt {
namespace {

constexpr double kLaunch_s = 1e-6;
constexpr double kFlopsPerS = 5e11;  // 1e12 at efficiency 0.5
constexpr double kBytesPerS = 8e10;  // 1e11 at efficiency 0.8

Device device() {
  Device device;
  device.launch_overhead_s = kLaunch_s;
  device.memory_bandwidth_bytes_per_s = 1e11;
  device.memory_efficiency = 0.8;
  device.peak_flops_per_s = {{DType::kFloat32, 1e12}};
  device.matmul_efficiency = 0.5;
  return device;
}

// A time that tells collective, axes and bytes apart.
class Priced : public CollectiveModel {
 public:
  double time_s(Collective collective, AxisSet axes,
                double bytes) const override {
    return (static_cast<int>(collective) + 1) * 1e-3 * axes + bytes * 1e-9;
  }
};

// out [8, 6] = op(x [8, 4], w [6, 4]) with factors b, n, k.
struct Product {
  Graph graph;
  NodeId node;
  Rule rule;
  Mesh mesh{{{2, 0}, {2, 0}}};

  explicit Product(bool trained = true) {
    const TensorMeta x{{8, 4}, DType::kFloat32};
    const TensorMeta w{{6, 4}, DType::kFloat32};
    graph.add_source(NodeKind::kInput, "x", x);
    graph.add_source(NodeKind::kParameter, "w", w, trained);
    node =
        graph.add_op("op", "my.product.default",
                     {{"a", ValueRef{ValueId(0)}}, {"b", ValueRef{ValueId(1)}}},
                     {{{8, 6}, DType::kFloat32}});
    rule.factors = {{"b", 8}, {"n", 6}, {"k", 4}};
    rule.operands = {{{0, 2}}, {{1, 2}}};
    rule.outputs = {{{0, 1}}};
    rule.linear_sets = {{0}};
    rule.forward_flops = 1e6;  // 2 us
    rule.backward_flops = 3e6;
  }
  CostParts cost(const OpConfig& config) const {
    const Device machine_device = device();
    const Priced collectives;
    const OpWork work = op_work(graph, graph.node(node), rule, config, mesh);
    return op_cost(graph, graph.node(node), rule, config,
                   {mesh, machine_device, collectives},
                   roofline(work, machine_device));
  }
};

const OpConfig kWhole{AxisUse::none(), AxisUse::none()};
const OpConfig kSplitB{AxisUse::factor(0), AxisUse::none()};
const OpConfig kSplitBoth{AxisUse::factor(0), AxisUse::factor(1)};

TEST(LocalBytes, DividesByCutsOnly) {
  const Mesh mesh({{2, 0}, {2, 0}});
  const TensorMeta meta{{8, 6}, DType::kBFloat16};
  EXPECT_EQ(local_bytes(meta, Layout::parse("R,P"), mesh), 96);
  EXPECT_EQ(local_bytes(meta, Layout::parse("S0,P"), mesh), 48);
  EXPECT_EQ(local_bytes(meta, Layout::parse("S0,S1"), mesh), 24);
}

TEST(OpCost, IsComputeTimeWhereThatIsLonger) {
  const Product product;
  EXPECT_DOUBLE_EQ(product.cost(kWhole).micro_batch_s,
                   2 * kLaunch_s + 4e6 / kFlopsPerS);
  EXPECT_DOUBLE_EQ(product.cost(kSplitB).micro_batch_s,
                   2 * kLaunch_s + 4e6 / (2 * kFlopsPerS));
  EXPECT_DOUBLE_EQ(product.cost(kSplitBoth).micro_batch_s,
                   2 * kLaunch_s + 4e6 / (4 * kFlopsPerS));
}

TEST(Roofline, AttentionHasARateOfItsOwn) {
  Product product;
  product.rule.attention = true;
  const OpWork work = op_work(product.graph, product.graph.node(product.node),
                              product.rule, kSplitB, product.mesh);
  Device machine_device = device();
  EXPECT_DOUBLE_EQ(roofline(work, machine_device).forward_s,
                   kLaunch_s + 1e6 / (2 * kFlopsPerS));
  machine_device.attention_efficiency = 0.125;  // a quarter of products' share
  EXPECT_DOUBLE_EQ(roofline(work, machine_device).forward_s,
                   kLaunch_s + 1e6 / (2 * kFlopsPerS / 4));
  EXPECT_DOUBLE_EQ(roofline(work, machine_device).backward_s,
                   kLaunch_s + 3e6 / (2 * kFlopsPerS / 4));
  product.rule.attention = false;
  EXPECT_DOUBLE_EQ(
      roofline(op_work(product.graph, product.graph.node(product.node),
                       product.rule, kSplitB, product.mesh),
               machine_device)
          .forward_s,
      kLaunch_s + 1e6 / (2 * kFlopsPerS));
}

TEST(OpCost, SomeIsKeptOnlyWhereAFactorIsSplit) {
  Product product;
  product.rule.extra_saved = {{800, {0}, 0}};
  const double whole = product.cost(kWhole).kept_bytes;
  const double split = product.cost(kSplitB).kept_bytes;
  product.rule.extra_saved.clear();
  EXPECT_EQ(product.cost(kWhole).kept_bytes, whole);
  EXPECT_EQ(product.cost(kSplitB).kept_bytes + 800 / 2, split);
}

TEST(OpCost, IsMemoryTimeWhereThatIsLonger) {
  Product product;
  product.rule.forward_flops = product.rule.backward_flops = 0;
  // x, w and out move once forward, twice backward.
  const double whole = 4 * (32 + 24 + 48);
  EXPECT_DOUBLE_EQ(product.cost(kWhole).micro_batch_s,
                   2 * kLaunch_s + 3 * whole / kBytesPerS);
  const double halved = 4 * (16 + 24 + 24);
  EXPECT_DOUBLE_EQ(product.cost(kSplitB).micro_batch_s,
                   2 * kLaunch_s + 3 * halved / kBytesPerS);
}

TEST(OpCost, PendingSumsDoNotDivideTheWork) {
  const Product product;
  const OpConfig pending{AxisUse::linear(0), AxisUse::none()};
  EXPECT_DOUBLE_EQ(product.cost(pending).micro_batch_s,
                   product.cost(kWhole).micro_batch_s);
}

TEST(OpCost, WithoutGradientsHasNoBackwardAndKeepsNothing) {
  Product product(/*trained=*/false);
  product.rule.outputs[0].saved = true;
  EXPECT_DOUBLE_EQ(product.cost(kWhole).micro_batch_s,
                   kLaunch_s + 1e6 / kFlopsPerS);
  EXPECT_EQ(product.cost(kWhole).kept_bytes, 0);
}

TEST(OpCost, KeepsSavedOutputsAndExtrasAtLocalSizes) {
  Product product;
  EXPECT_EQ(product.cost(kWhole).kept_bytes, 0);
  product.rule.operands[0].saved = true;  // charged where the operand is made
  EXPECT_EQ(product.cost(kWhole).kept_bytes, 0);
  product.rule.outputs[0].saved = true;
  product.rule.extra_saved = {{64, {0}}, {10, {}}};
  EXPECT_EQ(product.cost(kWhole).kept_bytes, 4 * 48 + 64 + 10);
  EXPECT_EQ(product.cost(kSplitB).kept_bytes, 4 * 24 + 32 + 10);
  EXPECT_EQ(product.cost(kSplitBoth).kept_bytes, 4 * 12 + 32 + 10);
}

TEST(OpCost, ChargesEveryLaunch) {
  Product product;
  const double one = product.cost(kWhole).micro_batch_s;
  product.rule.launches = 5;
  EXPECT_DOUBLE_EQ(product.cost(kWhole).micro_batch_s, one + 2 * 4 * kLaunch_s);
}

TEST(OpCost, OperandsReadAgainMoveAgain) {
  Product product;
  product.rule.forward_flops = product.rule.backward_flops = 0;
  product.rule.operands[1].moves = 10;
  const double bytes = 4 * (32 + 10 * 24 + 48);
  EXPECT_DOUBLE_EQ(product.cost(kWhole).micro_batch_s,
                   2 * kLaunch_s + 3 * bytes / kBytesPerS);
}

TEST(OpCost, RunsInnerCollectivesOverTheAxesOfTheirFactorsOnly) {
  Product product;
  const OpConfig both{AxisUse::factor(0), AxisUse::factor(1)};
  const double without = product.cost(both).micro_batch_s;
  const double whole = product.cost(kWhole).micro_batch_s;
  product.rule.collectives = {
      {Collective::kAllGather, {1}, 800, {0, 1}, Pass::kForward, 3}};
  EXPECT_DOUBLE_EQ(product.cost(kWhole).micro_batch_s, whole);
  EXPECT_DOUBLE_EQ(product.cost(both).micro_batch_s,
                   without + 3 * (2e-3 * 0b10 + 800 / 4 * 1e-9));
  product.rule.collectives[0].divided_by = {};
  EXPECT_DOUBLE_EQ(product.cost(both).micro_batch_s,
                   without + 3 * (2e-3 * 0b10 + 800 * 1e-9));
  product.rule.collectives[0].over = {0, 1};
  EXPECT_DOUBLE_EQ(product.cost(both).micro_batch_s,
                   without + 3 * (2e-3 * 0b11 + 800 * 1e-9));
}

TEST(OpCost, InnerCollectivesOfBackwardNeedAGradient) {
  for (const bool trained : {true, false}) {
    Product product(trained);
    const double without = product.cost(kSplitB).micro_batch_s;
    product.rule.collectives = {
        {Collective::kAllReduce, {0}, 100, {}, Pass::kBackward}};
    EXPECT_DOUBLE_EQ(product.cost(kSplitB).micro_batch_s,
                     without + (trained ? 1e-3 * 0b01 + 100 * 1e-9 : 0));
    EXPECT_DOUBLE_EQ(product.cost(kSplitB).network_s,
                     trained ? 1e-3 * 0b01 + 100 * 1e-9 : 0);
    EXPECT_EQ(product.cost(kWhole).network_s, 0);
  }
}

TEST(OpCost, ViewsTakeNoTime) {
  Product product;
  product.rule.view = true;
  EXPECT_EQ(product.cost(kWhole).micro_batch_s, 0);
}

TEST(OpCost, NeverGrowsWithASplit) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Product product;
    product.rule.forward_flops = static_cast<double>(random() % 1000000);
    product.rule.backward_flops = static_cast<double>(random() % 1000000);
    product.rule.outputs[0].saved = random() % 2 == 0;
    for (int factor = 0; factor < 3; ++factor) {
      const CostParts split =
          product.cost({AxisUse::factor(factor), AxisUse::none()});
      EXPECT_LE(split.micro_batch_s, product.cost(kWhole).micro_batch_s);
      EXPECT_LE(split.kept_bytes, product.cost(kWhole).kept_bytes);
    }
  }
}

TEST(ParameterCost, IsParameterGradientAndStateAtTheStoredSize) {
  const Mesh mesh({{2, 0}, {2, 0}});
  const TensorMeta meta{{8, 6}, DType::kFloat32};
  const Layout stored = Layout::parse("S0,R");
  const CostParts cost = parameter_cost(meta, /*trainable=*/true, stored, mesh,
                                        device(), TrainingSetup::of_states(2));
  EXPECT_EQ(cost.state_bytes, 96 * (1 + 1 + 2));
  // Reads parameter, gradient and state; writes parameter and state.
  EXPECT_DOUBLE_EQ(cost.step_s, 2 * kLaunch_s + 96 * 7 / kBytesPerS);
  const CostParts sgd = parameter_cost(meta, /*trainable=*/true, stored, mesh,
                                       device(), TrainingSetup::of_states(0));
  EXPECT_EQ(sgd.state_bytes, 96 * 2);
}

TEST(ParameterCost, StateHasADTypeOfItsOwn) {
  const Mesh mesh({{2, 0}, {2, 0}});
  const TensorMeta meta{{8, 6}, DType::kBFloat16};
  const Layout stored = Layout::parse("S0,R");
  const TrainingSetup float32_states(
      TrainingSetup::StateBytes{{DType::kBFloat16, 2 * 4}});
  const CostParts cost = parameter_cost(meta, /*trainable=*/true, stored, mesh,
                                        device(), float32_states);
  EXPECT_EQ(cost.state_bytes, 24 * (2 + 2 + 8));
  EXPECT_DOUBLE_EQ(cost.step_s,
                   2 * kLaunch_s + 24 * (3 * 2 + 2 * 8) / kBytesPerS);
  EXPECT_THROW(float32_states.state_bytes(DType::kFloat16), UserError);
}

TEST(ParameterCost, OfAFrozenTensorIsItsBytes) {
  const Mesh mesh({{2, 0}});
  const CostParts cost = parameter_cost(
      {{8}, DType::kInt64}, /*trainable=*/false, Layout::parse("R"), mesh,
      device(), TrainingSetup::of_states(2));
  EXPECT_EQ(cost.state_bytes, 64);
  EXPECT_EQ(cost.step_s, 0);
}

}  // namespace
}  // namespace tensoropt
