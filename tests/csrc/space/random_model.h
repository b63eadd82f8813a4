// Small models drawn at random, for tests against brute force.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/str_format.h"
#include "ir/graph.h"
#include "problem/brute_force.h"
#include "search/frontier_tracking.h"

namespace tensoropt::testing {

// Operators on [batch, width] tensors, each reading earlier ones at random.
class RandomModel {
 public:
  explicit RandomModel(int seed, std::int64_t batch = 64, int fewest = 3,
                       int most = 8)
      : random_(seed), batch_(batch) {
    values_.push_back(graph.add_source(NodeKind::kInput, "x", tensor(width())));
    values_.push_back(linear(values_[0]));
    const int count = fewest + choose(most - fewest + 1);
    for (int i = 0; i < count; ++i) values_.push_back(next());
    // What nobody has read is summed.
    ValueId total;
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
  TensorMeta tensor(std::int64_t features) const {
    return {{batch_, features}, DType::kFloat32};
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
  std::int64_t batch_;
  std::vector<ValueId> values_;
};

// Whether each of the others is matched or beaten, but for rounding: costs are
// added up in another order.
inline bool covers(const std::vector<Cost>& costs,
                   const std::vector<Cost>& others) {
  constexpr double kRounding = 1 + 1e-9;
  return std::all_of(others.begin(), others.end(), [&](const Cost& other) {
    return std::any_of(costs.begin(), costs.end(), [&](const Cost& cost) {
      return cost.memory <= other.memory * kRounding &&
             cost.time <= other.time * kRounding;
    });
  });
}

inline std::vector<Cost> points_of(const SearchResult& result) {
  std::vector<Cost> points;
  for (const Point& point : result.points()) {
    points.push_back({point.memory, point.time});
  }
  return points;
}

}  // namespace tensoropt::testing
