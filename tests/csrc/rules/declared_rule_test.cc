#include "rules/declared_rule.h"

#include <gtest/gtest.h>

#include "common/check.h"
#include "rules/config.h"
#include "rules/rule_book.h"

namespace tensoropt {
namespace {

TensorMeta floats(Shape shape) { return {std::move(shape), DType::kFloat32}; }

// out = my.op.default(x, weight, count=count)
struct OpGraph {
  Graph graph;
  NodeId node;

  OpGraph(Shape x, std::optional<Shape> weight, Shape out, int count = 0) {
    std::vector<NamedArgument> arguments;
    const auto source = [&](const char* name, const Shape& shape) {
      return ValueRef{
          graph.add_source(NodeKind::kParameter, name, floats(shape))};
    };
    arguments.push_back({"x", source("x", x)});
    arguments.push_back({"weight", weight ? Argument(source("w", *weight))
                                          : Argument(Literal{})});
    arguments.push_back({"count", Literal{std::int64_t{count}}});
    node = graph.add_op("op", "my.op.default", arguments, {floats(out)});
  }
  const Node& op() const { return graph.node(node); }
};

DeclaredRule declare(const char* pattern) {
  return {"my.op.default", parse_pattern(pattern), {"x", "weight"}};
}

Rule rule_for(const DeclaredRule& declared, const OpGraph& op) {
  Registry registry;
  registry.add(declared.target, definition_of(declared));
  return rule_of(registry, op.graph, op.op());
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Notation, WritesWhatItReads) {
  const OpGraph op({8, 4}, Shape{6, 4}, {8, 6});
  EXPECT_EQ(to_string(rule_for(declare("b k,n k->b n"), op)),
            "b k, n k -> b n");
  EXPECT_EQ(to_string(rule_for(declare("b _, n _ -> b n"), op)),
            "b _, n _ -> b n");
  const OpGraph scalar({8, 4}, Shape{}, {});
  EXPECT_EQ(to_string(rule_for(declare("b k, () -> "), scalar)),
            "b k, () -> ()");
}

TEST(Notation, OperatorsWithoutTensorsHaveNoTerms) {
  Rule rule;
  rule.outputs.push_back({{kNoFactor}});
  EXPECT_EQ(to_string(rule), "-> _");
}

TEST(Notation, SaysWhatIsWrong) {
  for (const auto& [text, message] : std::map<std::string, std::string>{
           {"b n, n", "one '->'"},
           {"b -> b -> b", "one '->'"},
           {"b 1n -> b", "'1n' is no dim"},
           {"b -n -> b", "'-n' is no dim"},
           {"b b -> b", "'b' stands twice"},
           {"... ... -> ...", "'...' stands twice"}}) {
    EXPECT_NE(error_of([&] { parse_pattern(text); }).find(message),
              std::string::npos)
        << text;
  }
}

TEST(DeclaredRule, FactorsHaveTheSizesOfTheirDims) {
  const Rule rule =
      rule_for(declare("b k, n k -> b n"), {{8, 4}, Shape{6, 4}, {8, 6}});
  ASSERT_EQ(rule.factors.size(), 3);
  EXPECT_EQ(rule.factors[0].name, "b");
  EXPECT_EQ(rule.factors[0].size, 8);
  EXPECT_EQ(rule.factors[1].size, 4);
  EXPECT_EQ(rule.factors[2].size, 6);
  EXPECT_EQ(rule.operands[1].dims, (std::vector<int>{2, 1}));
  EXPECT_EQ(rule.outputs[0].dims, (std::vector<int>{0, 2}));
}

TEST(DeclaredRule, ReductionsLeaveTheOutputPartial) {
  const Rule rule =
      rule_for(declare("b k, n k -> b n"), {{8, 4}, Shape{6, 4}, {8, 6}});
  const OpInterface interface = interface_of(rule, {AxisUse::factor(1)});
  EXPECT_EQ(interface.operands[0].value.to_string(), "S1");
  EXPECT_EQ(interface.outputs[0].value.to_string(), "P");
}

TEST(DeclaredRule, EllipsisTakesDimsAlignedAtTheRight) {
  const Rule rule = rule_for(declare("... n, n -> ... n"),
                             {{2, 8, 1, 6}, Shape{6}, {2, 8, 1, 6}});
  // The dim of size 1 may be broadcast: it is not split.
  EXPECT_EQ(to_string(rule), "...2 ...1 _ n, n -> ...2 ...1 _ n");
}

TEST(DeclaredRule, AbsentTensorsHaveNoOperand) {
  DeclaredRule declared = declare("b n, n -> b n");
  declared.linear_in = {{"x", "weight"}, {"weight"}};
  declared.saves = {"weight", "x"};
  const Rule rule = rule_for(declared, {{8, 6}, std::nullopt, {8, 6}});
  ASSERT_EQ(rule.operands.size(), 1);
  EXPECT_TRUE(rule.operands[0].saved);
  EXPECT_EQ(rule.linear_sets, (std::vector<std::vector<int>>{{0}}));
}

TEST(DeclaredRule, AnArgumentMaySayTheSizeOfAFactor) {
  DeclaredRule declared = declare("b h, h -> b h");
  declared.sizes = {{"h", "count"}};
  const OpGraph op({8, 12}, Shape{12}, {8, 12}, 4);
  const Rule rule = rule_for(declared, op);
  EXPECT_EQ(rule.factors[1].size, 4);
  const Mesh mesh({{2, 0}});
  const LocalForm form = definition_of(declared).local(
      op.graph, op.op(),
      {mesh, 1, factor_axes(rule, {AxisUse::factor(1)}), {}});
  ASSERT_EQ(form.arguments.size(), 1);
  EXPECT_EQ(form.arguments[0].name, "count");
  EXPECT_EQ(std::get<Literal>(form.arguments[0].value),
            Literal{std::int64_t{2}});
}

TEST(DeclaredRule, MeansAreWeightedByTheShareOfAPart) {
  DeclaredRule declared = declare("b n, n -> n");
  declared.mean = {"b"};
  const OpGraph op({8, 6}, Shape{6}, {6});
  const Rule rule = rule_for(declared, op);
  const Mesh mesh({{2, 0}, {2, 0}});
  const auto scale_of = [&](int factor) {
    const OpConfig config{AxisUse::factor(factor), AxisUse::factor(factor)};
    return definition_of(declared)
        .local(op.graph, op.op(), {mesh, 0, factor_axes(rule, config), {}})
        .scale;
  };
  EXPECT_EQ(scale_of(0), 0.25);
  EXPECT_EQ(scale_of(1), 1.0);
}

TEST(DeclaredRule, SizesThatDoNotAgreeAreNamed) {
  const std::string message = error_of([] {
    rule_for(declare("b n, n -> b n"), {{8, 6}, Shape{5}, {8, 6}});
  });
  EXPECT_NE(message.find("factor 'n' of size 6 in a dim of weight of size 5"),
            std::string::npos)
      << message;
}

TEST(DeclaredRule, TextTellsRulesApart) {
  const std::string text = text_of(declare("b n, n -> b n"));
  EXPECT_EQ(text, text_of(declare("b  n , n->b n")));
  EXPECT_NE(text, text_of(declare("b n, n -> b _")));
  DeclaredRule other = declare("b n, n -> b n");
  other.saves = {"x"};
  EXPECT_NE(text, text_of(other));
  other.saves = {};
  other.sizes = {{"b", "count"}};
  EXPECT_NE(text, text_of(other));
}

TEST(RuleBook, RegistriesThatWereHandedOutDoNotChange) {
  RuleBook book;
  const auto before = book.registry();
  book.declare(declare("b n, n -> b n"));
  const auto between = book.registry();
  book.declare(declare("b n, n -> b _"));
  const auto after = book.registry();
  book.withdraw("my.op.default");
  EXPECT_EQ(before->find("my.op.default"), nullptr);
  EXPECT_EQ(book.registry()->find("my.op.default"), nullptr);
  EXPECT_NE(between->find("my.op.default")->declaration,
            after->find("my.op.default")->declaration);
}

TEST(RuleBook, BuiltInRulesStay) {
  RuleBook book;
  DeclaredRule declared = declare("b n, n -> b n");
  declared.target = "aten.relu.default";
  EXPECT_THROW(book.declare(declared), UserError);
  EXPECT_THROW(book.withdraw("aten.relu.default"), UserError);
  EXPECT_EQ(book.registry()->targets(), builtin_registry().targets());
}

}  // namespace
}  // namespace tensoropt
