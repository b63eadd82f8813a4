// The model as the core sees it: a list of nodes in execution order, each
// an input, parameter, constant, operator or the output, joined by values.
//
//   Graph graph;
//   ValueId x = graph.add_source(NodeKind::kInput, "x", {{8, 4}, kFloat32});
//   ValueId w = graph.add_source(NodeKind::kParameter, "w", {...});
//   graph.add_op({"fc", "aten.linear.default", {{"input", x}, ...}}, {{...}});
//
// Operators keep their arguments by the names of their schema, defaults filled
// in, so that rules do not depend on how a call was written.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/id.h"
#include "ir/dtype.h"

namespace tensoropt {

using NodeId = Id<struct NodeTag>;
using ValueId = Id<struct ValueTag>;

struct TensorMeta {
  std::vector<std::int64_t> shape;
  DType dtype = DType::kFloat32;
  // How many neighbouring entries of each dim are kept together
  // (space/units.h); empty: one of each.
  std::vector<std::int64_t> units = {};

  std::int64_t unit(int dim) const { return units.empty() ? 1 : units[dim]; }
  // The shape in units, and the elements and bytes of one unit.
  std::vector<std::int64_t> counts() const;
  std::int64_t unit_elements() const;
  std::int64_t unit_bytes() const;

  std::int64_t num_elements() const;
  double num_bytes() const;
  int rank() const { return static_cast<int>(shape.size()); }

  auto operator<=>(const TensorMeta&) const = default;
};

// A tensor argument refers to a value; everything else is a literal. In a list
// of tensors None is a hole, an id of -1, which is no operand.
struct ValueRef {
  ValueId id;
  bool is_hole() const { return id.is_none(); }
  bool operator==(const ValueRef&) const = default;
};

using Literal =
    std::variant<std::monostate, bool, std::int64_t, double, std::string,
                 std::vector<std::int64_t>, std::vector<double>>;
using Argument = std::variant<Literal, ValueRef, std::vector<ValueRef>>;

struct NamedArgument {
  std::string name;
  Argument value;
};

enum class NodeKind { kInput, kParameter, kConstant, kOp, kOutput };

struct Node {
  NodeId id;
  NodeKind kind = NodeKind::kOp;
  std::string name;    // unique, for messages and plans
  std::string target;  // e.g. "aten.linear.default"; empty if not an operator
  std::vector<NamedArgument> arguments;
  std::vector<ValueId> operands;  // tensor arguments, flattened in order
  std::vector<ValueId> outputs;

  // The literal argument `name`, or null if it is absent or None.
  const Literal* find(std::string_view argument) const;
  // Typed access with a default for absent or None; throws InternalError if
  // the argument has another type.
  std::int64_t int_argument(std::string_view argument,
                            std::int64_t fallback) const;
  double double_argument(std::string_view argument, double fallback) const;
  bool bool_argument(std::string_view argument, bool fallback) const;
  // A list of integers; a single integer gives a list of one.
  std::vector<std::int64_t> ints_argument(std::string_view argument) const;
  // Position in `operands` of the tensor argument `name`; -1 if it is None. For
  // a list it is that of its first tensor.
  int operand_index(std::string_view argument) const;
  // Likewise of every entry of a list of tensors; -1 for holes.
  std::vector<int> operand_indices(std::string_view argument) const;
};

struct Use {
  NodeId node;
  int operand = -1;
};

struct Value {
  ValueId id;
  NodeId producer;
  int output_index = 0;
  TensorMeta meta;
  bool requires_grad = false;
  std::vector<Use> uses;
  // Of a parameter: dims that are split into equal parts only.
  std::vector<int> even_dims = {};
};

class Graph {
 public:
  // Adds an input, parameter or constant. A parameter or an input requires a
  // gradient if it is floating point and `trainable`; by default parameters
  // are.
  ValueId add_source(NodeKind kind, std::string name, TensorMeta meta,
                     bool trainable, std::vector<int> even_dims = {});
  ValueId add_source(NodeKind kind, std::string name, TensorMeta meta);

  // Adds an operator; returns its node. An output requires a gradient if it is
  // floating point, `differentiable`, and any operand requires one.
  NodeId add_op(std::string name, std::string target,
                std::vector<NamedArgument> arguments,
                std::vector<TensorMeta> outputs, bool differentiable = true);

  // The units of a value's dims, which must divide their sizes.
  void set_units(ValueId value, std::vector<std::int64_t> units);

  // Ends the graph with these values as its outputs.
  NodeId set_outputs(const std::vector<ValueId>& values);

  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Value>& values() const { return values_; }
  const Node& node(NodeId id) const { return nodes_[id]; }
  const Value& value(ValueId id) const { return values_[id]; }
  const Value& operand(const Node& node, int index) const {
    return values_[node.operands[index]];
  }
  const Value& output(const Node& node, int index) const {
    return values_[node.outputs[index]];
  }
  // Whether any output requires a gradient.
  bool has_backward(const Node& node) const;

 private:
  Node& add_node(NodeKind kind, std::string name, std::string target);
  ValueId add_value(NodeId producer, int index, TensorMeta meta,
                    bool requires_grad);
  void add_operand(NodeId node, ValueId value);

  std::vector<Node> nodes_;
  std::vector<Value> values_;
};

}  // namespace tensoropt
