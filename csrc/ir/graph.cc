#include "ir/graph.h"

#include <algorithm>

#include "common/check.h"

namespace tensoropt {

std::int64_t TensorMeta::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::vector<std::int64_t> TensorMeta::counts() const {
  std::vector<std::int64_t> result = shape;
  for (std::size_t dim = 0; dim < units.size(); ++dim) {
    result[dim] /= units[dim];
  }
  return result;
}

std::int64_t TensorMeta::unit_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t unit : units) count *= unit;
  return count;
}

std::int64_t TensorMeta::unit_bytes() const {
  return unit_elements() * item_size(dtype);
}

double TensorMeta::num_bytes() const {
  return static_cast<double>(num_elements()) * item_size(dtype);
}

const Literal* Node::find(std::string_view argument) const {
  for (const NamedArgument& named : arguments) {
    if (named.name != argument) continue;
    const auto* literal = std::get_if<Literal>(&named.value);
    if (literal && std::holds_alternative<std::monostate>(*literal)) break;
    return literal;
  }
  return nullptr;
}

namespace {

template <typename T>
const T& literal_as(const Node& node, std::string_view argument,
                    const Literal& literal) {
  const T* value = std::get_if<T>(&literal);
  TO_ASSERT(value, "argument '{}' of '{}' ({}) has an unexpected type",
            argument, node.name, node.target);
  return *value;
}

}  // namespace

std::int64_t Node::int_argument(std::string_view argument,
                                std::int64_t fallback) const {
  const Literal* literal = find(argument);
  if (!literal) return fallback;
  if (const bool* flag = std::get_if<bool>(literal)) return *flag ? 1 : 0;
  return literal_as<std::int64_t>(*this, argument, *literal);
}

double Node::double_argument(std::string_view argument, double fallback) const {
  const Literal* literal = find(argument);
  if (!literal) return fallback;
  if (const bool* flag = std::get_if<bool>(literal)) return *flag ? 1 : 0;
  if (const auto* integer = std::get_if<std::int64_t>(literal)) {
    return static_cast<double>(*integer);
  }
  return literal_as<double>(*this, argument, *literal);
}

bool Node::bool_argument(std::string_view argument, bool fallback) const {
  return int_argument(argument, fallback ? 1 : 0) != 0;
}

std::vector<std::int64_t> Node::ints_argument(std::string_view argument) const {
  const Literal* literal = find(argument);
  if (!literal) return {};
  if (const auto* integer = std::get_if<std::int64_t>(literal)) {
    return {*integer};
  }
  return literal_as<std::vector<std::int64_t>>(*this, argument, *literal);
}

namespace {

int count_tensors(const std::vector<ValueRef>& list) {
  return static_cast<int>(
      std::count_if(list.begin(), list.end(),
                    [](const ValueRef& item) { return !item.is_hole(); }));
}

}  // namespace

int Node::operand_index(std::string_view argument) const {
  int index = 0;
  for (const NamedArgument& named : arguments) {
    const auto* list = std::get_if<std::vector<ValueRef>>(&named.value);
    const bool single = std::holds_alternative<ValueRef>(named.value);
    if (named.name == argument) return single || list ? index : -1;
    index += single ? 1 : list ? count_tensors(*list) : 0;
  }
  return -1;
}

std::vector<int> Node::operand_indices(std::string_view argument) const {
  std::vector<int> indices;
  int next = operand_index(argument);
  for (const NamedArgument& named : arguments) {
    const auto* list = std::get_if<std::vector<ValueRef>>(&named.value);
    if (named.name != argument || !list) continue;
    for (const ValueRef& item : *list) {
      indices.push_back(item.is_hole() ? -1 : next++);
    }
  }
  return indices;
}

bool Graph::has_backward(const Node& node) const {
  return std::any_of(node.outputs.begin(), node.outputs.end(),
                     [&](ValueId id) { return values_[id].requires_grad; });
}

Node& Graph::add_node(NodeKind kind, std::string name, std::string target) {
  Node node;
  node.id = static_cast<NodeId>(nodes_.size());
  node.kind = kind;
  node.name = std::move(name);
  node.target = std::move(target);
  nodes_.push_back(std::move(node));
  return nodes_.back();
}

ValueId Graph::add_value(NodeId producer, int index, TensorMeta meta,
                         bool requires_grad) {
  Value value;
  value.id = static_cast<ValueId>(values_.size());
  value.producer = producer;
  value.output_index = index;
  value.meta = std::move(meta);
  value.requires_grad = requires_grad;
  values_.push_back(std::move(value));
  nodes_[producer].outputs.push_back(values_.back().id);
  return values_.back().id;
}

void Graph::add_operand(NodeId node, ValueId value) {
  TO_ASSERT(value >= 0 && value < static_cast<ValueId>(values_.size()),
            "node '{}' uses unknown value {}", nodes_[node].name, value);
  const int index = static_cast<int>(nodes_[node].operands.size());
  nodes_[node].operands.push_back(value);
  values_[value].uses.push_back({node, index});
}

ValueId Graph::add_source(NodeKind kind, std::string name, TensorMeta meta,
                          bool trainable, std::vector<int> even_dims) {
  TO_ASSERT(kind != NodeKind::kOp && kind != NodeKind::kOutput,
            "'{}' is not a source", name);
  const bool requires_grad =
      kind != NodeKind::kConstant && trainable && is_floating_point(meta.dtype);
  const NodeId id = add_node(kind, std::move(name), "").id;
  const ValueId value = add_value(id, 0, std::move(meta), requires_grad);
  values_[value].even_dims = std::move(even_dims);
  return value;
}

ValueId Graph::add_source(NodeKind kind, std::string name, TensorMeta meta) {
  return add_source(kind, std::move(name), std::move(meta),
                    kind == NodeKind::kParameter);
}

NodeId Graph::add_op(std::string name, std::string target,
                     std::vector<NamedArgument> arguments,
                     std::vector<TensorMeta> outputs, bool differentiable) {
  const NodeId id =
      add_node(NodeKind::kOp, std::move(name), std::move(target)).id;
  for (const NamedArgument& named : arguments) {
    if (const auto* ref = std::get_if<ValueRef>(&named.value)) {
      add_operand(id, ref->id);
    } else if (const auto* refs =
                   std::get_if<std::vector<ValueRef>>(&named.value)) {
      for (const ValueRef& item : *refs) {
        if (!item.is_hole()) add_operand(id, item.id);
      }
    }
  }
  nodes_[id].arguments = std::move(arguments);
  const auto& operands = nodes_[id].operands;
  const bool any = std::any_of(
      operands.begin(), operands.end(),
      [&](ValueId operand) { return values_[operand].requires_grad; });
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool requires_grad =
        any && differentiable && is_floating_point(outputs[i].dtype);
    add_value(id, static_cast<int>(i), std::move(outputs[i]), requires_grad);
  }
  return id;
}

void Graph::set_units(ValueId value, std::vector<std::int64_t> units) {
  TensorMeta& meta = values_[value].meta;
  TO_ASSERT(units.size() == meta.shape.size(), "{} units of {} dims",
            units.size(), meta.shape.size());
  for (std::size_t dim = 0; dim < units.size(); ++dim) {
    TO_ASSERT(units[dim] > 0 && meta.shape[dim] % units[dim] == 0,
              "units of {} in a dim of {}", units[dim], meta.shape[dim]);
  }
  meta.units = std::move(units);
}

NodeId Graph::set_outputs(const std::vector<ValueId>& values) {
  const NodeId id = add_node(NodeKind::kOutput, "output", "").id;
  for (const ValueId value : values) add_operand(id, value);
  return id;
}

}  // namespace tensoropt
