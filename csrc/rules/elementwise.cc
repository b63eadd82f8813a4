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

// Operators of namespace aten that are alike.
struct Family {
  Saves saves;
  Linear linear;
  std::vector<const char*> targets;
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {Saves::kNothing,
       Linear::kJointly,
       {"neg.default", "negative.default", "clone.default",
        "lift_fresh_copy.default", "lerp.Scalar"}},
      {Saves::kNothing, Linear::kFirst, {"mul.Scalar", "div.Scalar"}},
      {Saves::kProduct, Linear::kEach, {"mul.Tensor", "multiply.Tensor"}},
      {Saves::kProduct,
       Linear::kFirst,
       {"div.Tensor", "divide.Tensor", "true_divide.Tensor"}},
      {Saves::kOutput,
       Linear::kNo,
       {"relu.default", "tanh.default", "sigmoid.default", "exp.default",
        "expm1.default", "exp2.default", "tan.default", "sqrt.default",
        "rsqrt.default", "reciprocal.default", "pow.Scalar"}},
      // Activations.
      {Saves::kInputs,
       Linear::kNo,
       {"gelu.default", "silu.default", "mish.default", "elu.default",
        "selu.default", "celu.default", "leaky_relu.default", "relu6.default",
        "softplus.default", "hardtanh.default", "hardswish.default",
        "hardsigmoid.default", "hardshrink.default", "softshrink.default",
        "threshold.default", "log_sigmoid.default"}},
      // Functions.
      {Saves::kInputs,
       Linear::kNo,
       {"sin.default",       "cos.default",
        "asin.default",      "acos.default",
        "atan.default",      "sinh.default",
        "cosh.default",      "asinh.default",
        "acosh.default",     "atanh.default",
        "sinc.default",      "log.default",
        "log1p.default",     "log2.default",
        "log10.default",     "logit.default",
        "erf.default",       "erfc.default",
        "erfinv.default",    "lgamma.default",
        "digamma.default",   "abs.default",
        "absolute.default",  "square.default",
        "pow.Tensor_Scalar", "float_power.Tensor_Scalar",
        "clamp.default",     "clip.default",
        "clamp_min.default", "clamp_max.default",
        "nan_to_num.default"}},
      {Saves::kInputs,
       Linear::kNo,
       {"pow.Tensor_Tensor", "atan2.default", "hypot.default",
        "copysign.Tensor", "xlogy.Tensor", "logaddexp.default",
        "logaddexp2.default", "maximum.default", "minimum.default", "max.other",
        "min.other", "fmax.default", "fmin.default", "clamp.Tensor",
        "clamp_min.Tensor", "clamp_max.Tensor", "fmod.Tensor",
        "remainder.Tensor", "div.Tensor_mode"}},
      // Steps, and operators that give no gradient or pass it on.
      {Saves::kNothing,
       Linear::kNo,
       {"sign.default",       "sgn.default",          "floor.default",
        "ceil.default",       "round.default",        "round.decimals",
        "trunc.default",      "frac.default",         "add.Scalar",
        "sub.Scalar",         "rsub.Scalar",          "remainder.Scalar",
        "fmod.Scalar",        "floor_divide.default", "floor_divide.Scalar",
        "div.Scalar_mode",    "heaviside.default",    "isnan.default",
        "isinf.default",      "isfinite.default",     "isclose.default",
        "signbit.default",    "logical_not.default",  "bitwise_not.default",
        "bitwise_and.Scalar", "bitwise_or.Scalar",    "bitwise_xor.Scalar",
        "__and__.Scalar",     "__or__.Scalar",        "__lshift__.Scalar",
        "__rshift__.Scalar",  "masked_fill.Tensor"}},
  };
  return all;
}

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

Rule family_rule(const Graph& graph, const Node& node, Saves saves,
                 Linear linear) {
  RuleBuilder rule = pointwise(graph, node);
  if (graph.output(node, 0).requires_grad) apply_saves(rule, saves);
  apply_linear(rule, linear);
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
  Rule result = rule.take();
  result.cast = true;
  return result;
}

// a + weight * (b - a), the weight a tensor.
Rule interpolation_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = pointwise(graph, node);
  if (graph.output(node, 0).requires_grad) apply_saves(rule, Saves::kInputs);
  rule.linear_in({0, 1});
  return rule.take();
}

// a + value * b * c, or b / c.
Rule sum_and_product_rule(const Graph& graph, const Node& node, bool quotient) {
  RuleBuilder rule = pointwise(graph, node);
  if (graph.output(node, 0).requires_grad) {
    rule.save_product(1, 2);
    if (quotient) rule.save_operand(2);
  }
  rule.linear_in({0, 1});
  if (!quotient) rule.linear_in({0, 2});
  return rule.take();
}

// Whether a number is there and zero; a bool is none.
bool is_zero(const Node& node, const char* argument) {
  const Literal* value = node.find(argument);
  return value && !std::holds_alternative<bool>(*value) &&
         node.double_argument(argument, 1) == 0;
}

// Where one side is a number, choosing is linear only if that is zero.
Rule where_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = pointwise(graph, node);
  if (graph.output(node, 0).requires_grad) rule.save_operand(0);
  if (rule.num_operands() == 3) {
    rule.linear_in({1, 2});
  } else if (rule.num_operands() == 2 &&
             (is_zero(node, "self") || is_zero(node, "other"))) {
    rule.linear_in({1});
  }
  return rule.take();
}

// Filling with zero keeps sums (of numbers: a bool value fills bools).
Rule masked_fill_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = pointwise(graph, node);
  if (graph.output(node, 0).requires_grad) rule.save_operand(1);
  if (is_zero(node, "value")) rule.linear_in({0});
  return rule.take();
}

// The weight is one number, or one for each channel (dim 1).
Rule prelu_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& input = rule.operand_shape(0);
  const auto& weight = rule.operand_shape(1);
  const std::vector<int> factors =
      rule.keep_dims(std::vector<bool>(input.size(), false));
  // keep_dims takes the weight of a 1-D input for one of equal dims.
  if (weight.size() == 1) rule.bind_operand(1, 0, kNoFactor);
  if (weight.size() == 1 && weight[0] > 1 && input.size() > 1) {
    rule.bind_operand(1, 0, factors[1]);
  }
  if (graph.output(node, 0).requires_grad) apply_saves(rule, Saves::kInputs);
  rule.flops(rule.output_elements(), rule.output_elements());
  return rule.take();
}

// One half of `dim` gates the other: a block of it has no partner on its rank.
Rule glu_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.keep_dims(mark_dim(node, "dim", -1, rule.operand_shape(0).size()));
  if (graph.output(node, 0).requires_grad) rule.save_operand(0);
  rule.flops(rule.output_elements(), rule.output_elements());
  return rule.take();
}

}  // namespace

void register_elementwise(Registry& registry) {
  for (const Family& family : families()) {
    for (const char* target : family.targets) {
      registry.add(str_format("aten.{}", target),
                   {[saves = family.saves, linear = family.linear](
                        const Graph& graph, const Node& node) {
                      return family_rule(graph, node, saves, linear);
                    },
                    {}});
    }
  }
  const RuleFunction plain = [](const Graph& graph, const Node& node) {
    return pointwise(graph, node).take();
  };
  for (const char* name : kComparisons) {
    registry.add(str_format("aten.{}.Scalar", name), {plain, {}});
    registry.add(str_format("aten.{}.Tensor", name), {plain, {}});
  }
  for (const char* name : {"and", "or", "xor"}) {
    registry.add(str_format("aten.logical_{}.default", name), {plain, {}});
    registry.add(str_format("aten.bitwise_{}.Tensor", name), {plain, {}});
    registry.add(str_format("aten.__{}__.Tensor", name), {plain, {}});
  }
  for (const char* target : kCasts) registry.add(target, {cast_rule, {}});
  for (const char* target : {"aten.add.Tensor", "aten.sub.Tensor",
                             "aten.subtract.Tensor", "aten.rsub.Tensor"}) {
    registry.add(target, {sum_rule, {}});
  }
  for (const char* target : {"aten.where.self", "aten.where.ScalarSelf",
                             "aten.where.ScalarOther", "aten.where.Scalar"}) {
    registry.add(target, {where_rule, {}});
  }
  for (const bool quotient : {false, true}) {
    registry.add(quotient ? "aten.addcdiv.default" : "aten.addcmul.default",
                 {[quotient](const Graph& graph, const Node& node) {
                    return sum_and_product_rule(graph, node, quotient);
                  },
                  {}});
  }
  registry.add("aten.lerp.Tensor", {interpolation_rule, {}});
  registry.add("aten.masked_fill.Scalar", {masked_fill_rule, {}});
  registry.add("aten.prelu.default", {prelu_rule, {}});
  registry.add("aten.glu.default", {glu_rule, {}});
}

}  // namespace tensoropt
