// Products described by labels: einsum, and operators that are one. A label is
// a factor; one that the output lacks is summed over.

#include <algorithm>
#include <map>
#include <string_view>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// The label of each dim. Letters stand for themselves, dims of an ellipsis are
// -1, -2, ... from the right.
using Labels = std::vector<int>;

struct Equation {
  std::vector<Labels> operands;
  Labels output;
};

Labels parse_term(std::string_view term, int rank) {
  const int letters = static_cast<int>(std::count_if(
      term.begin(), term.end(), [](char c) { return c != '.' && c != ' '; }));
  Labels labels;
  for (std::size_t i = 0; i < term.size(); ++i) {
    if (term[i] == ' ') continue;
    if (term[i] != '.') {
      labels.push_back(term[i]);
      continue;
    }
    for (int dim = letters - rank; dim < 0; ++dim) labels.push_back(dim);
    i += 2;
  }
  return labels;
}

// Without "->": labels that occur once, sorted, after those of ellipses.
Labels implicit_output(const std::vector<Labels>& operands) {
  std::map<int, int> counts;
  for (const Labels& labels : operands) {
    for (const int label : labels) ++counts[label];
  }
  Labels output;
  for (const auto& [label, count] : counts) {
    if (label < 0 || count == 1) output.push_back(label);
  }
  return output;
}

Equation parse(std::string_view text, const RuleBuilder& rule) {
  Equation equation;
  const std::size_t arrow = text.find("->");
  std::string_view left = text.substr(0, arrow);
  for (int i = 0; i < rule.num_operands(); ++i) {
    const std::size_t comma = left.find(',');
    equation.operands.push_back(parse_term(
        left.substr(0, comma), static_cast<int>(rule.operand_shape(i).size())));
    left = comma == left.npos ? "" : left.substr(comma + 1);
  }
  equation.output =
      arrow == text.npos
          ? implicit_output(equation.operands)
          : parse_term(text.substr(arrow + 2),
                       static_cast<int>(rule.output_shape(0).size()));
  return equation;
}

// Sizes of labels: dims of size 1 broadcast.
std::map<int, std::int64_t> label_sizes(const RuleBuilder& rule,
                                        const Equation& equation) {
  std::map<int, std::int64_t> sizes;
  for (int i = 0; i < rule.num_operands(); ++i) {
    const auto& shape = rule.operand_shape(i);
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      std::int64_t& size = sizes[equation.operands[i][dim]];
      size = std::max(size, shape[dim]);
    }
  }
  return sizes;
}

// Whether some operand has the label twice: then a diagonal is taken, and a
// block of one dim does not meet the right block of the other.
bool is_diagonal(const Equation& equation, int label) {
  return std::any_of(equation.operands.begin(), equation.operands.end(),
                     [&](const Labels& labels) {
                       return std::count(labels.begin(), labels.end(), label) >
                              1;
                     });
}

std::string label_name(int label) {
  return label < 0 ? str_format("e{}", -label)
                   : std::string(1, static_cast<char>(label));
}

using LabelFactors = std::map<int, int>;

LabelFactors bind_labels(RuleBuilder& rule, const Equation& equation,
                         const std::map<int, std::int64_t>& sizes) {
  LabelFactors factors;
  for (const auto& [label, size] : sizes) {
    if (!is_diagonal(equation, label)) {
      factors[label] = rule.factor(label_name(label), size);
    }
  }
  for (int i = 0; i < rule.num_operands(); ++i) {
    const auto& shape = rule.operand_shape(i);
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      const int label = equation.operands[i][dim];
      if (shape[dim] != sizes.at(label) || !factors.contains(label)) continue;
      rule.bind_operand(i, static_cast<int>(dim), factors.at(label));
    }
  }
  for (std::size_t dim = 0; dim < equation.output.size(); ++dim) {
    const auto found = factors.find(equation.output[dim]);
    if (found == factors.end()) continue;
    rule.bind_output(0, static_cast<int>(dim), found->second);
  }
  return factors;
}

bool contains(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

// Labels that products of the first operands still have.
Labels kept_labels(const Equation& equation, const Labels& now,
                   std::size_t next) {
  Labels kept;
  for (const int label : now) {
    bool needed = contains(equation.output, label);
    for (std::size_t i = next; i < equation.operands.size(); ++i) {
      needed = needed || contains(equation.operands[i], label);
    }
    if (needed) kept.push_back(label);
  }
  return kept;
}

double elements(const Labels& labels,
                const std::map<int, std::int64_t>& sizes) {
  double product = 1;
  for (const int label : labels) {
    product *= static_cast<double>(sizes.at(label));
  }
  return product;
}

// Operands are multiplied from left to right; what comes out in between is kept
// for backward.
void set_costs(RuleBuilder& rule, const Equation& equation,
               const std::map<int, std::int64_t>& sizes,
               const LabelFactors& factors, double item_bytes) {
  double flops = 0;
  Labels now = equation.operands[0];
  for (std::size_t i = 1; i < equation.operands.size(); ++i) {
    for (const int label : equation.operands[i]) {
      if (!contains(now, label)) now.push_back(label);
    }
    flops += 2 * elements(now, sizes);
    now = kept_labels(equation, now, i + 1);
    if (i + 1 == equation.operands.size()) break;
    std::vector<int> split;
    for (const int label : now) {
      if (factors.contains(label)) split.push_back(factors.at(label));
    }
    rule.saves_extra(item_bytes * elements(now, sizes), split);
  }
  int gradients = 0;
  for (int i = 0; i < rule.num_operands(); ++i) {
    if (rule.operand_requires_grad(i)) ++gradients;
    for (int j = 0; j < rule.num_operands(); ++j) {
      if (j != i && rule.operand_requires_grad(j)) rule.save_operand(i);
    }
  }
  if (flops == 0) flops = elements(equation.operands[0], sizes);
  rule.flops(flops, gradients * flops);
}

Rule labelled_rule(const Graph& graph, const Node& node,
                   std::string_view text) {
  RuleBuilder rule(graph, node);
  const Equation equation = parse(text, rule);
  const auto sizes = label_sizes(rule, equation);
  const LabelFactors factors = bind_labels(rule, equation, sizes);
  set_costs(rule, equation, sizes, factors,
            item_size(graph.output(node, 0).meta.dtype));
  return rule.take();
}

Rule einsum_rule(const Graph& graph, const Node& node) {
  return labelled_rule(graph, node,
                       std::get<std::string>(*node.find("equation")));
}

// The equation of operands with free labels, of which pairs are made equal.
std::string tensordot_equation(const Graph& graph, const Node& node) {
  const std::size_t ranks[] = {graph.operand(node, 0).meta.shape.size(),
                               graph.operand(node, 1).meta.shape.size()};
  std::string terms[] = {std::string(ranks[0], ' '),
                         std::string(ranks[1], ' ')};
  char next = 'a';
  const auto left = node.ints_argument("dims_self");
  const auto right = node.ints_argument("dims_other");
  for (std::size_t i = 0; i < left.size(); ++i) {
    terms[0][normalize_dim(left[i], ranks[0])] = next;
    terms[1][normalize_dim(right[i], ranks[1])] = next++;
  }
  std::string output;
  for (std::string& term : terms) {
    for (char& label : term) {
      if (label == ' ') output += label = next++;
    }
  }
  return str_format("{},{}->{}", terms[0], terms[1], output);
}

Rule tensordot_rule(const Graph& graph, const Node& node) {
  return labelled_rule(graph, node, tensordot_equation(graph, node));
}

// Dims of the last operands are contracted; numbers just scale.
Rule inner_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  std::string left(rule.operand_shape(0).size(), ' ');
  std::string right(rule.operand_shape(1).size(), ' ');
  const bool contracts = !left.empty() && !right.empty();
  char next = 'a';
  for (char& label : left) label = next++;
  for (char& label : right) label = next++;
  std::string output = left + right;
  if (contracts) {
    right.back() = left.back();
    output.pop_back();
    output.erase(left.size() - 1, 1);
  }
  return labelled_rule(graph, node,
                       str_format("{},{}->{}", left, right, output));
}

constexpr int kGroups = 0;  // the factor of grouped products

// [t, k] x [g, k, n] -> [t, n]. Rows of groups lie after one another, as
// offsets say: they are no equal blocks and stay whole. A split of the groups
// leaves Partial outputs: each rank multiplies the rows of its groups and gives
// zeros for the others. Blocks of n and k are multiples of `alignment`.
Rule grouped_product_rule(const Graph& graph, const Node& node,
                          std::int64_t alignment) {
  RuleBuilder rule(graph, node);
  const auto& left = rule.operand_shape(0);
  const auto& right = rule.operand_shape(1);
  if (left.size() != 2 || right.size() != 3) return rule.take();
  const auto blocks = [alignment](std::int64_t size) {
    return size % alignment == 0 ? size / alignment : 1;
  };
  const bool plain = node.operands.size() == 3 && !node.find("out_dtype");
  const int groups = rule.factor("g", plain ? right[0] : 1);
  const int n = rule.factor("n", blocks(right[2]));
  const int k = rule.factor("k", blocks(right[1]));
  rule.bind_operand(0, 1, k);
  rule.bind_operand(1, 0, groups);
  rule.bind_operand(1, 1, k);
  rule.bind_operand(1, 2, n);
  rule.bind_output(0, 1, n);
  for (int i = 2; i < rule.num_operands(); ++i) rule.save_operand(i);
  rule.save_product(0, 1);
  rule.contraction(2 * rule.output_elements() * static_cast<double>(right[1]),
                   0, 1);
  return rule.take();
}

LocalForm grouped_product_local(const Graph& graph, const Node& node,
                                const LocalContext& context) {
  LocalForm form;
  if (context.factor_axes.empty() || context.factor_axes[kGroups] == 0) {
    return form;
  }
  const std::int64_t groups = graph.operand(node, 1).meta.shape[0];
  form.target = "tensoropt.grouped_mm_shard.default";
  form.extra = {context.range(kGroups, groups).begin};
  return form;
}

// PyTorch's kernels want rows that begin at multiples of 16 bytes.
Rule aligned_product_rule(const Graph& graph, const Node& node) {
  constexpr int kAlignedBytes = 16;
  return grouped_product_rule(
      graph, node,
      kAlignedBytes / item_size(graph.operand(node, 0).meta.dtype));
}

Rule fallback_product_rule(const Graph& graph, const Node& node) {
  return grouped_product_rule(graph, node, 1);
}

}  // namespace

void register_einsum(Registry& registry) {
  const auto add = [&](const char* target, const char* equation) {
    registry.add(target, {[=](const Graph& graph, const Node& node) {
                            return labelled_rule(graph, node, equation);
                          },
                          {}});
  };
  add("aten.outer.default", "m,n->mn");
  add("aten.ger.default", "m,n->mn");
  add("aten.dot.default", "k,k->");
  add("aten.vdot.default", "k,k->");
  add("aten.mv.default", "mk,k->m");
  registry.add("aten.einsum.default", {einsum_rule, {}});
  registry.add("aten.tensordot.default", {tensordot_rule, {}});
  registry.add("aten.inner.default", {inner_rule, {}});
  registry.add("aten._grouped_mm.default",
               {aligned_product_rule, grouped_product_local});
  registry.add("transformers.grouped_mm_fallback.default",
               {fallback_product_rule, grouped_product_local});
}

}  // namespace tensoropt
