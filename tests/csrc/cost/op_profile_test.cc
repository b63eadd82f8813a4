#include "cost/op_profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "common/check.h"
#include "rules/registry.h"

namespace tensoropt {
namespace {

Device device() {
  Device device;
  device.launch_overhead_s = 1e-6;
  device.memory_bandwidth_bytes_per_s = 1e10;
  device.memory_efficiency = 1;
  device.peak_flops_per_s = {{DType::kFloat32, 1e11}};
  device.matmul_efficiency = 1;
  return device;
}

OpWork work_of(double flops) {
  OpWork work;
  work.forward_flops = flops;
  work.backward_flops = 2 * flops;
  work.bytes = flops / 100;
  work.backward = true;
  return work;
}

LocalCall call_of(double flops, const std::string& family = "f") {
  LocalCall call;
  call.key = family + std::to_string(flops);
  call.family = family;
  call.work = work_of(flops);
  return call;
}

// As if the device did `slowness` times as long as the roofline says.
OpSample sample_of(double flops, double slowness,
                   const std::string& family = "f") {
  const LocalCall call = call_of(flops, family);
  PassTimes times = roofline(call.work, device());
  times.forward_s *= slowness;
  times.backward_s *= slowness;
  return {call.key, call.family, call.work, times};
}

TEST(OpProfile, TakesWhatWasMeasured) {
  const OpSample sample = sample_of(1e6, 3);
  const OpEstimate estimate =
      OpProfile({sample}, device()).estimate(call_of(1e6));
  EXPECT_EQ(estimate.source, EstimateSource::kMeasured);
  EXPECT_EQ(estimate.times.forward_s, sample.times.forward_s);
  EXPECT_EQ(estimate.times.backward_s, sample.times.backward_s);
  EXPECT_EQ(estimate.error, 0);
}

TEST(OpProfile, ScalesTheRooflineAsNeighboursDiffer) {
  const OpProfile profile(
      {sample_of(1e6, 3), sample_of(4e6, 3), sample_of(8e6, 3)}, device());
  const LocalCall call = call_of(2e6);
  const OpEstimate estimate = profile.estimate(call);
  EXPECT_EQ(estimate.source, EstimateSource::kNeighbours);
  const PassTimes base = roofline(call.work, device());
  EXPECT_NEAR(estimate.times.forward_s, 3 * base.forward_s,
              1e-12 * base.forward_s);
  EXPECT_NEAR(estimate.times.backward_s, 3 * base.backward_s,
              1e-12 * base.backward_s);
  EXPECT_NEAR(estimate.error, 0, 1e-12);
}

TEST(OpProfile, NearerNeighboursCountMore) {
  const OpProfile profile({sample_of(1e6, 2), sample_of(1e9, 8)}, device());
  const auto slowness = [&](double flops) {
    const LocalCall call = call_of(flops);
    return profile.estimate(call).times.forward_s /
           roofline(call.work, device()).forward_s;
  };
  EXPECT_LT(slowness(1.1e6), 2.1);
  EXPECT_GT(slowness(0.9e9), 7.9);
  EXPECT_GT(slowness(1e8), slowness(1e7));
}

TEST(OpProfile, ErrorIsThatOfPredictingSamplesFromTheOthers) {
  // Each of two is predicted with the factor of the other.
  const OpProfile profile({sample_of(1e6, 2), sample_of(2e6, 3)}, device());
  EXPECT_NEAR(profile.estimate(call_of(1.5e6)).error, 0.5, 1e-9);
  const OpProfile single({sample_of(1e6, 2)}, device());
  EXPECT_LT(single.estimate(call_of(2e6)).error, 0);
}

TEST(OpProfile, OtherFamiliesFallBackToTheRoofline) {
  const OpProfile profile({sample_of(1e6, 3)}, device());
  const LocalCall call = call_of(1e6, "g");
  const OpEstimate estimate = profile.estimate(call);
  EXPECT_EQ(estimate.source, EstimateSource::kRoofline);
  EXPECT_EQ(estimate.times.forward_s, roofline(call.work, device()).forward_s);
}

TEST(OpProfile, DoesNotDependOnTheOrderOfSamples) {
  std::mt19937 random(1);
  std::vector<OpSample> samples;
  for (int i = 1; i < 20; ++i) samples.push_back(sample_of(1e5 * i, 1 + i % 3));
  const LocalCall call = call_of(3.3e5);
  const double expected =
      OpProfile(samples, device()).estimate(call).times.forward_s;
  for (int round = 0; round < 5; ++round) {
    std::shuffle(samples.begin(), samples.end(), random);
    EXPECT_NEAR(OpProfile(samples, device()).estimate(call).times.forward_s,
                expected, 1e-12 * expected);
  }
}

TEST(OpProfile, RefusesWrongTimes) {
  for (const double seconds : {0.0, -1.0, std::nan(""), double{INFINITY}}) {
    OpSample sample = sample_of(1e6, 1);
    sample.times.forward_s = seconds;
    EXPECT_THROW(OpProfile({sample}, device()), UserError) << seconds;
  }
  const OpSample twice = sample_of(1e6, 1);
  EXPECT_THROW(OpProfile({twice, twice}, device()), UserError);
}

// x [8, 4] . w [6, 4]
struct Linear {
  Graph graph;
  NodeId node;
  Rule rule;
  Mesh mesh{{{2, 0}, {2, 0}}};

  Linear() {
    graph.add_source(NodeKind::kInput, "x", {{8, 4}, DType::kFloat32});
    graph.add_source(NodeKind::kParameter, "w", {{6, 4}, DType::kFloat32});
    node = graph.add_op("fc", "aten.linear.default",
                        {{"input", ValueRef{ValueId(0)}},
                         {"weight", ValueRef{ValueId(1)}},
                         {"bias", Literal{}}},
                        {{{8, 6}, DType::kFloat32}});
    rule = rule_of(builtin_registry(), graph, graph.node(node));
  }
  LocalCall call(const OpConfig& config) const {
    return local_call(builtin_registry(), graph, graph.node(node), rule, config,
                      mesh);
  }
};

TEST(LocalCall, KeyHasLocalShapesAndWhatNeedsGradients) {
  const Linear linear;
  const OpConfig whole{AxisUse::none(), AxisUse::none()};
  EXPECT_EQ(linear.call(whole).key,
            "aten.linear.default(float32[8,4],float32[6,4]g,None)");
  const OpConfig split{AxisUse::factor(0), AxisUse::factor(0)};
  const LocalCall call = linear.call(split);
  EXPECT_EQ(call.key, "aten.linear.default(float32[2,4],float32[6,4]g,None)");
  EXPECT_EQ(call.operands[0].meta.shape, (Shape{2, 4}));
  EXPECT_TRUE(call.operands[1].requires_grad);
  EXPECT_EQ(call.work.forward_flops, linear.call(whole).work.forward_flops / 4);
}

TEST(LocalCall, KeyHasLiteralsAsTheyAreOnTheRank) {
  Graph graph;
  graph.add_source(NodeKind::kInput, "x", {{8, 4}, DType::kFloat32});
  const NodeId id =
      graph.add_op("flat", "aten.reshape.default",
                   {{"self", ValueRef{ValueId(0)}},
                    {"shape", Literal{std::vector<std::int64_t>{32}}}},
                   {{{32}, DType::kFloat32}});
  const Node& node = graph.node(id);
  const Rule rule = rule_of(builtin_registry(), graph, node);
  const Mesh mesh({{2, 0}});
  for (std::size_t factor = 0; factor < rule.factors.size(); ++factor) {
    if (rule.factors[factor].size % 2 != 0) continue;
    const OpConfig split{AxisUse::factor(static_cast<int>(factor))};
    const LocalCall call =
        local_call(builtin_registry(), graph, node, rule, split, mesh);
    EXPECT_NE(call.key.find("[16]"), std::string::npos) << call.key;
    return;
  }
  FAIL() << "nothing can be split";
}

}  // namespace
}  // namespace tensoropt
