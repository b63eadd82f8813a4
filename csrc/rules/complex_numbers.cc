// Complex numbers and their parts.

#include <vector>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// Every dim; operands broadcast.
RuleBuilder each_element(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.broadcast();
  rule.flops(rule.output_elements(), rule.output_elements());
  return rule;
}

// A real or imaginary part, which is a view of the number.
Rule part_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = each_element(graph, node);
  rule.linear_in({0});
  rule.view();
  return rule.take();
}

// The same bytes, read otherwise: conjugates are turned by who reads them.
Rule conjugate_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = each_element(graph, node);
  rule.linear_in({0});
  rule.alias();
  return rule.take();
}

Rule turned_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = each_element(graph, node);
  rule.linear_in({0});
  return rule.take();
}

Rule pair_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = each_element(graph, node);
  if (rule.num_operands() == 2) rule.linear_in({0, 1});
  return rule.take();
}

// An absolute value and an angle. Backward goes by signs, so sums do not pass.
Rule polar_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = each_element(graph, node);
  if (graph.output(node, 0).requires_grad) {
    rule.save_operand(0);
    rule.save_operand(1);
    rule.save_output(0);
  }
  return rule.take();
}

Rule angle_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule = each_element(graph, node);
  if (graph.output(node, 0).requires_grad) rule.save_operand(0);
  return rule.take();
}

// [..., 2] as one complex number or the other way round: the last dim of the
// real side stays whole.
Rule pairs_view_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& in = rule.operand_shape(0);
  const Shape& out = rule.output_shape(0);
  const std::size_t common = in.size() < out.size() ? in.size() : out.size();
  for (int dim = 0; dim < static_cast<int>(common); ++dim) {
    const int factor = rule.factor(str_format("d{}", dim), in[dim]);
    rule.bind_operand(0, dim, factor);
    rule.bind_output(0, dim, factor);
  }
  rule.linear_in({0});
  rule.alias();
  return rule.take();
}

}  // namespace

void register_complex_numbers(Registry& registry) {
  const auto add = [&](std::vector<const char*> names, const auto& rule) {
    for (const char* name : names) {
      registry.add(str_format("aten.{}.default", name), {rule, {}});
    }
  };
  add({"real", "imag"}, part_rule);
  add({"conj", "_conj"}, conjugate_rule);
  add({"conj_physical", "_conj_physical", "resolve_conj", "resolve_neg"},
      turned_rule);
  add({"complex"}, pair_rule);
  add({"polar"}, polar_rule);
  add({"angle"}, angle_rule);
  add({"view_as_complex", "view_as_real"}, pairs_view_rule);
}

}  // namespace tensoropt
