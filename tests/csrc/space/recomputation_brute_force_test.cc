// Frontiers of small models on one device against every set of operators that
// run again, whose memory and time are added up by definition.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
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

using testing::Cost;
using testing::covers;
using testing::pareto;
using testing::points_of;
using testing::RandomModel;

constexpr int kModels = 300;

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
        const CostParts& own =
            space_.nodes()[space_.node_of(node.id)].configs->costs[0];
        total.memory += own.kept_bytes + own.state_bytes;
        total.time += own.micro_batch_s + own.step_s;
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
    RulesByNode rules;
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
    const SearchResult found = search(SpaceProblem(space).build(1), {});
    ASSERT_TRUE(found.exact());
    const std::vector<Cost> points = points_of(found);
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
