// Two linear layers with a norm between them on four alike devices:
//
//   loss = sum(fc2(norm(relu(fc1(x)))))   x [batch, 16], 32 inner features
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/collective.h"
#include "space/space.h"

namespace tensoropt::testing {

class SmallSpace {
 public:
  explicit SmallSpace(std::int64_t batch = 8,
                      ConfigSpace config_space = ConfigSpace::kOrdered)
      : SmallSpace(SpaceOptions{.config_space = config_space}, batch) {}

  explicit SmallSpace(const SpaceOptions& options, std::int64_t batch = 8,
                      bool input_gradient = false) {
    x = graph.add_source(NodeKind::kInput, "x", tensor({batch, 16}),
                         input_gradient);
    w1 = graph.add_source(NodeKind::kParameter, "w1", tensor({32, 16}));
    scale = graph.add_source(NodeKind::kParameter, "scale", tensor({32}));
    w2 = graph.add_source(NodeKind::kParameter, "w2", tensor({16, 32}));
    fc1 = linear("fc1", x, w1, {batch, 32});
    const NodeId relu =
        op("relu", "aten.relu.default", {{"self", out(fc1)}}, {batch, 32});
    norm = op("norm", "aten.layer_norm.default",
              {{"input", out(relu)},
               {"normalized_shape", Literal{std::vector<std::int64_t>{32}}},
               {"weight", ValueRef{scale}}},
              {batch, 32});
    fc2 = linear("fc2", graph.node(norm).outputs[0], w2, {batch, 16});
    sum = op("sum", "aten.sum.default", {{"self", out(fc2)}}, {});
    graph.set_outputs({graph.node(sum).outputs[0]});
    space = std::make_unique<StrategySpace>(
        graph, builtin_registry(), Machine{mesh, device, collectives}, options);
  }

  // The labels of the configs of a graph node that a mask allows.
  std::vector<std::string> labels(
      NodeId node, const std::vector<std::vector<bool>>& allowed) const {
    const int index = space->node_of(node);
    const auto& configs = space->nodes()[index].configs->configs;
    std::vector<std::string> result;
    for (std::size_t c = 0; c < configs.size(); ++c) {
      if (allowed[index][c]) result.push_back(configs[c].label);
    }
    return result;
  }
  NodeId producer(ValueId value) const { return graph.value(value).producer; }

  Graph graph;
  ValueId x, w1, scale, w2;
  NodeId fc1, norm, fc2, sum;
  Mesh mesh{{{2, 0}, {2, 0}}};
  Device device;
  Cluster cluster{"four", device, {{"gpu", 4, 1e9, 1e-6}}};
  AnalyticCollectives collectives{cluster, mesh};
  std::unique_ptr<StrategySpace> space;

 private:
  static TensorMeta tensor(Shape shape) {
    return {std::move(shape), DType::kFloat32};
  }
  ValueRef out(NodeId node) const { return {graph.node(node).outputs[0]}; }
  NodeId op(const std::string& name, const std::string& target,
            std::vector<NamedArgument> arguments, Shape shape) {
    return graph.add_op(name, target, std::move(arguments),
                        {tensor(std::move(shape))});
  }
  NodeId linear(const std::string& name, ValueId input, ValueId weight,
                Shape shape) {
    return op(name, "aten.linear.default",
              {{"input", ValueRef{input}}, {"weight", ValueRef{weight}}},
              std::move(shape));
  }
};

}  // namespace tensoropt::testing
