// Operators that make tensors: of nothing, or of the shape or type of another
// tensor. What differs by place, as positions do, every device makes whole.

#include <string_view>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

Rule whole_rule(const Graph& graph, const Node& node) {
  return RuleBuilder(graph, node).take();
}

// Alike in all entries, or drawn for each: any part can be made by itself, of
// its own size.
Rule sized_rule(const Graph& graph, const Node& node, bool random) {
  RuleBuilder rule(graph, node);
  rule.broadcast();
  if (random) rule.random();
  return rule.take();
}

LocalForm sized_local(const Graph&, const Node&, const LocalContext& context) {
  LocalForm form;
  form.arguments.push_back({"size", Literal(context.output_shapes[0])});
  return form;
}

void add_sized(Registry& registry, std::string_view target, bool random) {
  registry.add(str_format("aten.{}", target),
               {[random](const Graph& graph, const Node& node) {
                  return sized_rule(graph, node, random);
                },
                sized_local});
}

// Of the shape of an operand that is not read: zeros are the sum of zeros.
Rule like_rule(const Graph& graph, const Node& node, bool zeros) {
  RuleBuilder rule(graph, node);
  rule.broadcast();
  rule.flops(rule.output_elements(), 0);
  if (zeros) rule.linear_in({0});
  return rule.take();
}

// All of the operand becomes one value, a number or a scalar tensor.
Rule fill_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.broadcast();
  rule.flops(rule.output_elements(), 0);
  if (rule.num_operands() > 1) rule.linear_in({1});
  return rule.take();
}

// Of an operand's type only. Dims of one size at one place (mostly a batch) are
// split alike; however the operand's other dims are split, the result is whole.
Rule new_rule(const Graph& graph, const Node& node, bool zeros) {
  RuleBuilder rule(graph, node);
  const auto& in = rule.operand_shape(0);
  const auto& out = rule.output_shape(0);
  for (int dim = 0; dim < static_cast<int>(out.size()); ++dim) {
    rule.bind_output(0, dim, rule.factor(str_format("d{}", dim), out[dim]));
  }
  rule.flops(rule.output_elements(), 0);
  for (int dim = 0; dim < static_cast<int>(in.size()); ++dim) {
    const bool alike =
        dim < static_cast<int>(out.size()) && in[dim] == out[dim];
    rule.bind_operand(0, dim,
                      alike ? rule.output_factor(dim)
                            : rule.factor(str_format("i{}", dim), in[dim],
                                          FactorKind::kCombined));
  }
  if (zeros) rule.linear_in({0});
  return rule.take();
}

// E.g. zeros, zeros_like and new_zeros.
void add_filled(Registry& registry, std::string_view name) {
  const bool zeros = name == "zeros";
  const char* overload = name == "empty" ? "memory_format" : "default";
  add_sized(registry, str_format("{}.{}", name, overload), false);
  registry.add(str_format("aten.{}_like.default", name),
               {[zeros](const Graph& graph, const Node& node) {
                  return like_rule(graph, node, zeros);
                },
                {}});
  registry.add(str_format("aten.new_{}.default", name),
               {[zeros](const Graph& graph, const Node& node) {
                  return new_rule(graph, node, zeros);
                },
                sized_local});
}

}  // namespace

void register_creation(Registry& registry) {
  for (const char* target :
       {"arange.default", "arange.start", "arange.start_step",
        "scalar_tensor.default", "eye.default", "eye.m", "linspace.default",
        "logspace.default", "tril_indices.default", "triu_indices.default"}) {
    registry.add(str_format("aten.{}", target), {whole_rule, {}});
  }
  for (const std::string_view name : {"zeros", "ones", "full", "empty"}) {
    add_filled(registry, name);
  }
  for (const char* target : {"aten.fill.Scalar", "aten.fill.Tensor"}) {
    registry.add(target, {fill_rule, {}});
  }
  for (const char* target :
       {"rand.default", "randn.default", "randint.default", "randint.low"}) {
    add_sized(registry, target, true);
  }
}

}  // namespace tensoropt
