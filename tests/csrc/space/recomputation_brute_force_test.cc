// Frontiers of small models on one device against every set of operators that
// run again, whose memory and time are added up by definition.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "comm/collective.h"
#include "common/str_format.h"
#include "problem/brute_force.h"
#include "search/frontier_tracking.h"
#include "space/space.h"

namespace tensoropt {
namespace {

using testing::Cost;
using testing::pareto;

constexpr int kModels = 300;
constexpr std::int64_t kBatch = 64;

// Operators on [batch, width] tensors, each reading earlier ones at random.
class RandomModel {
 public:
  explicit RandomModel(int seed) : random_(seed) {
    values_.push_back(graph.add_source(NodeKind::kInput, "x", tensor(width())));
    values_.push_back(linear(values_[0]));
    const int count = 3 + choose(6);
    for (int i = 0; i < count; ++i) values_.push_back(next());
    // What nobody has read is summed.
    ValueId total = -1;
    for (const ValueId id : values_) {
      if (!graph.value(id).uses.empty() || id == values_[0]) continue;
      const ValueId sum =
          op("sum", "aten.sum.default", {{"self", ValueRef{id}}}, {{}});
      total =
          total < 0
              ? sum
              : op("total", "aten.add.Tensor",
                   {{"self", ValueRef{total}}, {"other", ValueRef{sum}}}, {{}});
    }
    graph.set_outputs({total});
  }

  Graph graph;

 private:
  static std::int64_t width() { return 8; }
  static TensorMeta tensor(std::int64_t features) {
    return {{kBatch, features}, DType::kFloat32};
  }
  int choose(int count) { return static_cast<int>(random_() % count); }
  ValueId any() {
    // Mostly the last ones, so that there are chains.
    const int last = static_cast<int>(values_.size()) - 1;
    return values_[choose(3) == 0 ? 1 + choose(last) : last];
  }

  ValueId op(const std::string& name, const std::string& target,
             std::vector<NamedArgument> arguments, TensorMeta output) {
    const NodeId node =
        graph.add_op(str_format("{}{}", name, graph.nodes().size()), target,
                     std::move(arguments), {std::move(output)});
    return graph.node(node).outputs[0];
  }

  ValueId linear(ValueId x) {
    const ValueId weight = graph.add_source(
        NodeKind::kParameter, str_format("w{}", graph.nodes().size()),
        {{width(), width()}, DType::kFloat32});
    return op("linear", "aten.linear.default",
              {{"input", ValueRef{x}}, {"weight", ValueRef{weight}}},
              tensor(width()));
  }

  ValueId next() {
    const auto unary = [&](const char* name) {
      return op(name, str_format("aten.{}.default", name),
                {{"self", ValueRef{any()}}}, tensor(width()));
    };
    const auto binary = [&](const char* name) {
      return op(name, str_format("aten.{}.Tensor", name),
                {{"self", ValueRef{any()}}, {"other", ValueRef{any()}}},
                tensor(width()));
    };
    switch (choose(7)) {
      case 0:
        return unary("relu");
      case 1:
        return unary("gelu");
      case 2:
        return unary("tanh");
      case 3:
        return binary("mul");
      case 4:
        return binary("add");
      case 5:
        return op(
            "norm", "aten.layer_norm.default",
            {{"input", ValueRef{any()}},
             {"normalized_shape", Literal{std::vector<std::int64_t>{width()}}}},
            tensor(width()));
      default:
        return linear(any());
    }
  }

  std::mt19937 random_;
  std::vector<ValueId> values_;
};

// Whether each of the others is matched or beaten, but for rounding: costs are
// added up in another order.
bool covers(const std::vector<Cost>& costs, const std::vector<Cost>& others) {
  constexpr double kRounding = 1 + 1e-9;
  return std::all_of(others.begin(), others.end(), [&](const Cost& other) {
    return std::any_of(costs.begin(), costs.end(), [&](const Cost& cost) {
      return cost.memory <= other.memory * kRounding &&
             cost.time <= other.time * kRounding;
    });
  });
}

class Oracle {
 public:
  Oracle(const Graph& graph, const StrategySpace& space,
         const Recomputation& recomputation, const Device& device)
      : graph_(graph),
        space_(space),
        recomputation_(recomputation),
        device_(device) {
    for (const Node& node : graph.nodes()) {
      if (recomputation.may_run_again(node.id)) movable_.push_back(node.id);
    }
  }

  std::size_t num_movable() const { return movable_.size(); }

  std::vector<Cost> frontier() const {
    std::vector<Cost> costs;
    for (std::uint32_t set = 0; set < 1U << movable_.size(); ++set) {
      std::vector<bool> again(graph_.nodes().size(), false);
      for (std::size_t i = 0; i < movable_.size(); ++i) {
        again[movable_[i]] = (set >> i & 1) != 0;
      }
      if (is_allowed(again)) costs.push_back(cost(again));
    }
    return pareto(std::move(costs));
  }

 private:
  bool is_allowed(const std::vector<bool>& again) const {
    for (const Value& value : graph_.values()) {
      if (value.uses.size() != 1) continue;
      const bool consumer = again[value.uses[0].node];
      if (!recomputation_.pairs(value.id).has(again[value.producer],
                                              consumer)) {
        return false;
      }
    }
    return true;
  }

  // Whether backward, or something that runs again in it, reads the value.
  bool is_needed(const Value& value, const std::vector<bool>& again) const {
    const Node& producer = graph_.node(value.producer);
    if (graph_.has_backward(producer) &&
        space_.rule(producer.id).outputs[value.output_index].saved) {
      return true;
    }
    for (const Use& use : value.uses) {
      const Node& user = graph_.node(use.node);
      if (user.kind != NodeKind::kOp) continue;
      const bool saved = graph_.has_backward(user) &&
                         space_.rule(user.id).operands[use.operand].saved;
      if (saved || again[user.id]) return true;
    }
    return false;
  }

  Cost cost(const std::vector<bool>& again) const {
    Cost total;
    const Mesh& mesh = space_.machine().mesh;
    for (const Node& node : graph_.nodes()) {
      if (node.kind == NodeKind::kOutput) continue;
      if (node.kind != NodeKind::kOp) {
        const OpCost& own =
            space_.nodes()[space_.node_of(node.id)].configs->costs[0];
        total.memory += own.memory_bytes;
        total.time += own.time_s;
        continue;
      }
      const Rule& rule = space_.rule(node.id);
      const PassTimes times =
          roofline(op_work(graph_, node, rule, {}, mesh), device_);
      total.time += times.forward_s + times.backward_s;
      if (again[node.id]) {
        total.time += times.forward_s;
        continue;
      }
      const Value& output = graph_.output(node, 0);
      if (is_needed(output, again)) total.memory += output.meta.num_bytes();
      if (!graph_.has_backward(node)) continue;
      for (const ExtraSaved& extra : rule.extra_saved) {
        total.memory += extra.bytes;
      }
    }
    return total;
  }

  const Graph& graph_;
  const StrategySpace& space_;
  const Recomputation& recomputation_;
  const Device& device_;
  std::vector<NodeId> movable_;
};

TEST(RecomputationBruteForce, FrontiersAreThoseOfAllSets) {
  const Mesh mesh({});
  Device device;
  device.launch_overhead_s = 1e-6;
  const Cluster cluster{"one", device, {{"gpu", 1, 1e9, 1e-6}}};
  const AnalyticCollectives collectives{cluster, mesh};
  SpaceOptions options;
  options.recompute = true;
  int compared = 0;
  int larger = 0;
  for (int seed = 0; seed < kModels; ++seed) {
    SCOPED_TRACE(str_format("seed {}", seed));
    const RandomModel model(seed);
    const StrategySpace space(model.graph, builtin_registry(),
                              Machine{mesh, device, collectives}, options);
    std::vector<Rule> rules;
    for (const Node& node : model.graph.nodes()) {
      rules.push_back(node.kind == NodeKind::kOp ? space.rule(node.id)
                                                 : Rule{});
    }
    const Recomputation recomputation(
        model.graph, rules,
        [&](const Node& node) { return rules[node.id].repeatable; });
    const Oracle oracle(model.graph, space, recomputation, device);
    if (oracle.num_movable() > 12) continue;
    const std::vector<Cost> expected = oracle.frontier();
    const SearchResult found = search(space.build_problem(1), {});
    ASSERT_TRUE(found.exact());
    std::vector<Cost> points;
    for (const Point& point : found.points()) {
      points.push_back({point.memory, point.time});
    }
    EXPECT_TRUE(covers(points, expected));
    EXPECT_TRUE(covers(expected, points));
    ++compared;
    larger += expected.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(compared, kModels / 2);
  EXPECT_GT(larger, kModels / 3);
}

}  // namespace
}  // namespace tensoropt
