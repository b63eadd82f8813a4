// Element-wise operators with broadcasting: every dim of the output is a
// factor.

#include <numeric>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// What autograd keeps.
enum class Saves { kNothing, kInputs, kOutput, kProduct };

// In which operands the operator is linear: in none, in all together (a sum),
// in each while the others are fixed (a product), or in the first only.
enum class Linear { kNo, kJointly, kEach, kFirst };

struct Traits {
  const char* target;
  Saves saves;
  Linear linear;
};

constexpr Traits kTraits[] = {
    {"aten.neg.default", Saves::kNothing, Linear::kJointly},
    {"aten.clone.default", Saves::kNothing, Linear::kJointly},
    {"aten.gelu.default", Saves::kInputs, Linear::kNo},
    {"aten.silu.default", Saves::kInputs, Linear::kNo},
    {"aten.mish.default", Saves::kInputs, Linear::kNo},
    {"aten.elu.default", Saves::kInputs, Linear::kNo},
    {"aten.leaky_relu.default", Saves::kInputs, Linear::kNo},
    {"aten.softplus.default", Saves::kInputs, Linear::kNo},
    {"aten.hardtanh.default", Saves::kInputs, Linear::kNo},
    {"aten.hardswish.default", Saves::kInputs, Linear::kNo},
    {"aten.hardsigmoid.default", Saves::kInputs, Linear::kNo},
    {"aten.log_sigmoid.default", Saves::kInputs, Linear::kNo},
    {"aten.relu.default", Saves::kOutput, Linear::kNo},
    {"aten.tanh.default", Saves::kOutput, Linear::kNo},
    {"aten.sigmoid.default", Saves::kOutput, Linear::kNo},
    {"aten.exp.default", Saves::kOutput, Linear::kNo},
    {"aten.sqrt.default", Saves::kOutput, Linear::kNo},
    {"aten.rsqrt.default", Saves::kOutput, Linear::kNo},
    {"aten.reciprocal.default", Saves::kOutput, Linear::kNo},
    {"aten.sin.default", Saves::kInputs, Linear::kNo},
    {"aten.cos.default", Saves::kInputs, Linear::kNo},
    {"aten.log.default", Saves::kInputs, Linear::kNo},
    {"aten.log1p.default", Saves::kInputs, Linear::kNo},
    {"aten.erf.default", Saves::kInputs, Linear::kNo},
    {"aten.abs.default", Saves::kInputs, Linear::kNo},
    {"aten.square.default", Saves::kInputs, Linear::kNo},
    {"aten.pow.Tensor_Scalar", Saves::kInputs, Linear::kNo},
    {"aten.pow.Scalar", Saves::kOutput, Linear::kNo},
    {"aten.pow.Tensor_Tensor", Saves::kInputs, Linear::kNo},
    {"aten.clamp.default", Saves::kInputs, Linear::kNo},
    {"aten.clamp_min.default", Saves::kInputs, Linear::kNo},
    {"aten.clamp_max.default", Saves::kInputs, Linear::kNo},
    {"aten.sign.default", Saves::kNothing, Linear::kNo},
    {"aten.floor.default", Saves::kNothing, Linear::kNo},
    {"aten.round.default", Saves::kNothing, Linear::kNo},
    {"aten.logical_not.default", Saves::kNothing, Linear::kNo},
    {"aten.bitwise_not.default", Saves::kNothing, Linear::kNo},
    {"aten.zeros_like.default", Saves::kNothing, Linear::kNo},
    {"aten.ones_like.default", Saves::kNothing, Linear::kNo},
    {"aten.full_like.default", Saves::kNothing, Linear::kNo},
    {"aten.add.Scalar", Saves::kNothing, Linear::kNo},
    {"aten.sub.Scalar", Saves::kNothing, Linear::kNo},
    {"aten.rsub.Scalar", Saves::kNothing, Linear::kNo},
    {"aten.mul.Scalar", Saves::kNothing, Linear::kFirst},
    {"aten.div.Scalar", Saves::kNothing, Linear::kFirst},
    {"aten.mul.Tensor", Saves::kProduct, Linear::kEach},
    {"aten.div.Tensor", Saves::kProduct, Linear::kFirst},
    {"aten.maximum.default", Saves::kInputs, Linear::kNo},
    {"aten.minimum.default", Saves::kInputs, Linear::kNo},
    {"aten.masked_fill.Tensor", Saves::kNothing, Linear::kNo},
    {"aten.remainder.Scalar", Saves::kNothing, Linear::kNo},
    {"aten.floor_divide.default", Saves::kNothing, Linear::kNo},
};

constexpr const char* kComparisons[] = {"eq", "ne", "lt", "le", "gt", "ge"};

constexpr const char* kCasts[] = {
    "aten.to.dtype", "aten.to.dtype_layout",  "aten.to.device",
    "aten.to.other", "aten._to_copy.default", "aten.type_as.default"};

std::vector<int> all_operands(const RuleBuilder& rule) {
  std::vector<int> operands(rule.num_operands());
  std::iota(operands.begin(), operands.end(), 0);
  return operands;
}

void apply_linear(RuleBuilder& rule, Linear linear) {
  switch (linear) {
    case Linear::kNo:
      return;
    case Linear::kJointly:
      return rule.linear_in(all_operands(rule));
    case Linear::kEach:
      for (const int operand : all_operands(rule)) rule.linear_in({operand});
      return;
    case Linear::kFirst:
      return rule.linear_in({0});
  }
}

void apply_saves(RuleBuilder& rule, Saves saves) {
  switch (saves) {
    case Saves::kNothing:
      return;
    case Saves::kInputs:
      for (const int operand : all_operands(rule)) rule.save_operand(operand);
      return;
    case Saves::kOutput:
      return rule.save_output(0);
    case Saves::kProduct:
      if (rule.num_operands() > 1) rule.save_product(0, 1);
      return;
  }
}

// Backward costs about as much as forward: these are bound by memory.
RuleBuilder pointwise(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.broadcast();
  rule.flops(rule.output_elements(), rule.output_elements());
  return rule;
}

Rule traits_rule(const Graph& graph, const Node& node, Traits traits) {
  RuleBuilder rule = pointwise(graph, node);
  if (graph.output(node, 0).requires_grad) apply_saves(rule, traits.saves);
  apply_linear(rule, traits.linear);
  return rule.take();
}

// x + y is linear in both; x + 1 is not.
Rule sum_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = pointwise(graph, node);
  if (rule.num_operands() == 2) rule.linear_in({0, 1});
  return rule.take();
}

// Casts between floating-point types are linear up to rounding.
Rule cast_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = pointwise(graph, node);
  if (is_floating_point(graph.operand(node, 0).meta.dtype) &&
      is_floating_point(graph.output(node, 0).meta.dtype)) {
    rule.linear_in({0});
  }
  return rule.take();
}

Rule where_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = pointwise(graph, node);
  if (graph.output(node, 0).requires_grad) rule.save_operand(0);
  if (rule.num_operands() == 3) rule.linear_in({1, 2});
  return rule.take();
}

// Filling with zero keeps sums (of numbers: a bool value fills bools).
Rule masked_fill_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = pointwise(graph, node);
  if (graph.output(node, 0).requires_grad) rule.save_operand(1);
  const Literal* value = node.find("value");
  if (value && !std::holds_alternative<bool>(*value) &&
      node.double_argument("value", 1) == 0) {
    rule.linear_in({0});
  }
  return rule.take();
}

// The mask is the same wherever the value is replicated or a pending sum.
Rule dropout_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = pointwise(graph, node);
  if (!node.bool_argument("train", true)) return rule.take();
  std::vector<int> factors(rule.output_shape(0).size());
  std::iota(factors.begin(), factors.end(), 0);
  if (graph.output(node, 0).requires_grad) {
    rule.saves_extra(rule.output_elements(), factors);
  }
  rule.linear_in({0});
  rule.random();
  return rule.take();
}

}  // namespace

void register_elementwise(Registry& registry) {
  for (const Traits& traits : kTraits) {
    registry.add(traits.target,
                 {[traits](const Graph& graph, const Node& node) {
                    return traits_rule(graph, node, traits);
                  },
                  {}});
  }
  const RuleFunction plain = [](const Graph& graph, const Node& node) {
    return pointwise(graph, node).take();
  };
  for (const char* name : kComparisons) {
    registry.add(fmt::format("aten.{}.Scalar", name), {plain, {}});
    registry.add(fmt::format("aten.{}.Tensor", name), {plain, {}});
  }
  for (const char* name : {"and", "or", "xor"}) {
    registry.add(fmt::format("aten.logical_{}.default", name), {plain, {}});
    registry.add(fmt::format("aten.bitwise_{}.Tensor", name), {plain, {}});
    registry.add(fmt::format("aten.__{}__.Tensor", name), {plain, {}});
  }
  for (const char* target : kCasts) registry.add(target, {cast_rule, {}});
  registry.add("aten.add.Tensor", {sum_rule, {}});
  registry.add("aten.sub.Tensor", {sum_rule, {}});
  registry.add("aten.where.self", {where_rule, {}});
  registry.add("aten.masked_fill.Scalar", {masked_fill_rule, {}});
  registry.add("aten.dropout.default", {dropout_rule, {}});
}

}  // namespace tensoropt
