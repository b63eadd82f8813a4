#include "rules/declared_rule.h"

#include <algorithm>

#include "common/check.h"
#include "rules/builder.h"

namespace tensoropt {

namespace {

constexpr double kBackwardFlops = 2;  // of those of forward

template <typename List, typename Item>
bool contains(const List& list, const Item& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// Makes the rule of one call.
class Binder {
 public:
  Binder(const DeclaredRule& declared, const Graph& graph, const Node& node)
      : declared_(declared), node_(node), rule_(graph, node) {}

  Rule bind() {
    bind_operands();
    bind_outputs();
    for (const auto& names : declared_.linear_in) {
      const std::vector<int> operands = operands_of(names);
      if (!operands.empty()) rule_.linear_in(operands);
    }
    for (const int i : operands_of(declared_.additive)) rule_.additive(i);
    for (const int i : operands_of(declared_.saves)) rule_.save_operand(i);
    for (const int i : declared_.saves_outputs) rule_.save_output(i);
    const double flops = forward_flops();
    rule_.flops(flops, kBackwardFlops * flops);
    if (declared_.random) rule_.random();
    if (!declared_.repeatable) rule_.not_repeatable();
    return rule_.take();
  }

 private:
  void bind_operands() {
    int operand = 0;
    for (const NamedArgument& argument : node_.arguments) {
      const int count = num_tensors(argument);
      if (count == 0) continue;
      const DimNames& term = term_of(argument.name);
      for (int i = 0; i < count; ++i, ++operand) {
        operands_[argument.name].push_back(operand);
        bind_dims(argument.name, term, rule_.operand_shape(operand),
                  [&](int dim, int f) { rule_.bind_operand(operand, dim, f); });
      }
    }
  }

  void bind_outputs() {
    const auto& terms = declared_.pattern.outputs;
    TO_CHECK(static_cast<int>(terms.size()) == rule_.num_outputs(),
             "'{}': the rule of {} has {} outputs, the operator gives {}",
             node_.name, node_.target, terms.size(), rule_.num_outputs());
    for (int i = 0; i < rule_.num_outputs(); ++i) {
      bind_dims(str_format("output {}", i), terms[i], rule_.output_shape(i),
                [&](int dim, int f) { rule_.bind_output(i, dim, f); });
    }
  }

  static int num_tensors(const NamedArgument& argument) {
    if (std::holds_alternative<ValueRef>(argument.value)) return 1;
    const auto* list = std::get_if<std::vector<ValueRef>>(&argument.value);
    return list ? static_cast<int>(list->size()) : 0;
  }

  const DimNames& term_of(const std::string& argument) const {
    const auto& names = declared_.tensors;
    const auto found = std::find(names.begin(), names.end(), argument);
    TO_ASSERT(found != names.end(), "{} has no tensor '{}'", node_.target,
              argument);
    return declared_.pattern.operands[found - names.begin()];
  }

  template <typename Bind>
  void bind_dims(const std::string& tensor, const DimNames& term,
                 const Shape& shape, const Bind& bind) {
    const bool any = contains(term, kAnyDims);
    const std::size_t named = term.size() - (any ? 1 : 0);
    TO_CHECK(any ? shape.size() >= named : shape.size() == named,
             "'{}': the rule of {} has '{}' for {}, which has shape [{}]; give "
             "one word per dim",
             node_.name, node_.target, str_join(term, " "), tensor,
             str_join(shape, ", "));
    int dim = 0;
    for (const std::string& word : term) {
      if (word != kAnyDims) {
        if (word != kWholeDim) bind(dim, factor(word, tensor, shape[dim]));
        ++dim;
        continue;
      }
      for (std::size_t left = shape.size() - named; left > 0; --left, ++dim) {
        if (shape[dim] > 1) {  // one of size 1 is broadcast
          const std::string name = str_format("...{}", left - 1);
          bind(dim, factor(name, tensor, shape[dim]));
        }
      }
    }
  }

  // The factor of a name, found to have `size` elements in a dim.
  int factor(const std::string& name, const std::string& tensor,
             std::int64_t size) {
    const auto argument = declared_.sizes.find(name);
    const bool given = argument != declared_.sizes.end();
    const std::int64_t expected =
        given ? node_.int_argument(argument->second, 0) : size;
    const auto [found, added] = factors_.try_emplace(name, -1);
    if (added) {
      found->second = rule_.factor(name, expected);
      rule_.keep_even(found->second);
      sizes_[name] = expected;
    }
    const std::int64_t known = sizes_[name];
    TO_CHECK(given ? known > 0 && size % known == 0 : size == known,
             "'{}': the rule of {} has factor '{}' of size {} in a dim of {} "
             "of size {}; dims of one factor are of one size, or multiples of "
             "an argument that sizes= names",
             node_.name, node_.target, name, known, tensor, size);
    return found->second;
  }

  std::vector<int> operands_of(const std::vector<std::string>& names) const {
    std::vector<int> result;
    for (const std::string& name : names) {
      const auto found = operands_.find(name);
      if (found == operands_.end()) continue;
      result.insert(result.end(), found->second.begin(), found->second.end());
    }
    return result;
  }

  double forward_flops() const {
    if (!declared_.flops) {
      return declared_.flops_per_element * rule_.output_elements();
    }
    std::vector<Shape> shapes;
    for (int i = 0; i < rule_.num_operands(); ++i) {
      shapes.push_back(rule_.operand_shape(i));
    }
    return declared_.flops(shapes);
  }

  const DeclaredRule& declared_;
  const Node& node_;
  RuleBuilder rule_;
  std::map<std::string, std::vector<int>> operands_;  // by argument
  std::map<std::string, int> factors_;
  std::map<std::string, std::int64_t> sizes_;
};

LocalForm local_form(const DeclaredRule& declared, const Graph& graph,
                     const Node& node, const LocalContext& context) {
  const Rule rule = Binder(declared, graph, node).bind();
  FactorParts call{node, {}, {}};
  for (std::size_t i = 0; i < rule.factors.size(); ++i) {
    const int factor = static_cast<int>(i);
    call.parts[rule.factors[i].name] = context.parts(factor);
    call.part[rule.factors[i].name] = context.part(factor);
  }
  LocalForm form;
  for (const std::string& factor : declared.mean) {
    form.scale /= call.parts[factor];
  }
  for (const auto& [factor, argument] : declared.sizes) {
    const std::int64_t size = node.int_argument(argument, 0);
    form.arguments.push_back({argument, Literal(size / call.parts[factor])});
  }
  if (declared.local) {
    for (NamedArgument& argument : declared.local(call)) {
      form.arguments.push_back(std::move(argument));
    }
  }
  return form;
}

void check_tensors(const DeclaredRule& declared, const char* option,
                   const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    TO_CHECK(contains(declared.tensors, name),
             "rule of {}: {} names '{}', which is no tensor argument of it; "
             "these are: {}",
             declared.target, option, name, str_join(declared.tensors, ", "));
  }
}

void check_factor(const DeclaredRule& declared, const char* option,
                  const std::string& name) {
  const std::vector<std::string> factors = declared.pattern.factors();
  TO_CHECK(contains(factors, name),
           "rule of {}: {} names factor '{}', which the rule does not have; "
           "its factors are: {}",
           declared.target, option, name, str_join(factors, ", "));
}

void check_mean(const DeclaredRule& declared) {
  const auto& outputs = declared.pattern.outputs;
  for (const std::string& factor : declared.mean) {
    check_factor(declared, "mean", factor);
    TO_CHECK(outputs.size() == 1 && !contains(outputs[0], factor),
             "rule of {}: mean names factor '{}', which must be missing in the "
             "one output of the operator",
             declared.target, factor);
  }
}

void check(const DeclaredRule& declared) {
  const auto& [operands, outputs] = declared.pattern;
  TO_CHECK(operands.size() == declared.tensors.size(),
           "rule of {}: the rule has {} operands, the operator has {} tensor "
           "arguments ({}); give one term for each, '()' for a scalar",
           declared.target, operands.size(), declared.tensors.size(),
           str_join(declared.tensors, ", "));
  for (const auto& set : declared.linear_in) {
    check_tensors(declared, "linear_in", set);
  }
  check_tensors(declared, "additive", declared.additive);
  check_tensors(declared, "saves", declared.saves);
  for (const int output : declared.saves_outputs) {
    TO_CHECK(output >= 0 && output < static_cast<int>(outputs.size()),
             "rule of {}: saves_outputs names output {}, the rule has {}",
             declared.target, output, outputs.size());
  }
  check_mean(declared);
  for (const auto& [factor, argument] : declared.sizes) {
    check_factor(declared, "sizes", factor);
  }
}

std::string text_of(const std::vector<std::vector<std::string>>& lists) {
  std::vector<std::string> texts;
  for (const auto& words : lists) texts.push_back(str_join(words, " "));
  return str_join(texts, ", ");
}

}  // namespace

OpDefinition definition_of(const DeclaredRule& declared) {
  check(declared);
  return {[declared](const Graph& graph, const Node& node) {
            return Binder(declared, graph, node).bind();
          },
          [declared](const Graph& graph, const Node& node,
                     const LocalContext& context) {
            return local_form(declared, graph, node, context);
          },
          text_of(declared)};
}

std::string text_of(const DeclaredRule& declared) {
  std::vector<std::string> sizes;
  for (const auto& [factor, argument] : declared.sizes) {
    sizes.push_back(str_format("{} of {}", factor, argument));
  }
  return str_format(
      "{} [{}]->[{}] tensors [{}] linear_in [{}] additive [{}] saves [{}] [{}] "
      "mean [{}] sizes [{}] flops {} random {} functions {}{}",
      declared.target, text_of(declared.pattern.operands),
      text_of(declared.pattern.outputs), str_join(declared.tensors, ", "),
      text_of(declared.linear_in), str_join(declared.additive, ", "),
      str_join(declared.saves, ", "), str_join(declared.saves_outputs, ", "),
      str_join(declared.mean, ", "), str_join(sizes, ", "),
      declared.flops_per_element, declared.random, declared.functions,
      declared.repeatable ? "" : " not repeatable");
}

}  // namespace tensoropt
