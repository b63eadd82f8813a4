#include "cost/local_call.h"

#include <algorithm>
#include <map>

#include "common/check.h"

namespace tensoropt {

namespace {

std::string text_of(const Literal& literal) {
  return std::visit(
      [](const auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return "None";
        } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>> ||
                             std::is_same_v<T, std::vector<double>>) {
          return str_format("[{}]", str_join(value, ","));
        } else {
          return str_format("{}", value);
        }
      },
      literal);
}

std::string text_of(const LocalOperand& operand) {
  std::string text = str_format("{}[{}]", to_string(operand.meta.dtype),
                                str_join(operand.meta.shape, ","));
  if (operand.requires_grad) text += "g";
  return text;
}

std::vector<LocalOperand> local_operands(const Graph& graph, const Node& node,
                                         const OpInterface& interface,
                                         const Mesh& mesh, int rank) {
  std::vector<LocalOperand> operands;
  for (std::size_t i = 0; i < node.operands.size(); ++i) {
    const Value& value = graph.operand(node, static_cast<int>(i));
    operands.push_back(
        {{local_shape(value.meta, interface.operands[i].value, mesh, rank),
          value.meta.dtype},
         value.requires_grad});
  }
  return operands;
}

// Every argument in the order of the schema, literals as they are on the rank.
std::string arguments_text(const Node& node, const LocalCall& call) {
  std::map<std::string_view, const Argument*> replaced;
  for (const NamedArgument& named : call.form.arguments) {
    replaced[named.name] = &named.value;
  }
  std::string text;
  std::size_t next = 0;
  for (const NamedArgument& named : node.arguments) {
    if (!text.empty()) text += ",";
    if (std::holds_alternative<ValueRef>(named.value)) {
      text += text_of(call.operands[next++]);
    } else if (const auto* list =
                   std::get_if<std::vector<ValueRef>>(&named.value)) {
      for (std::size_t i = 0; i < list->size(); ++i) {
        if (i > 0) text += ",";
        // A hole, as in x[:, i], is no operand.
        text += (*list)[i].is_hole() ? "None" : text_of(call.operands[next++]);
      }
    } else {
      const auto found = replaced.find(named.name);
      text += text_of(std::get<Literal>(
          found == replaced.end() ? named.value : *found->second));
    }
  }
  return text;
}

// What the operator that takes the place of another gets besides its tensors.
std::string extra_text(const LocalForm& form, const Mesh& mesh) {
  std::string text;
  for (const Literal& literal : form.extra) {
    text += str_format(";{}", text_of(literal));
  }
  for (const AxisSet axes : form.groups) {
    text += str_format(";{} ranks", mesh.size_of(axes));
  }
  return text;
}

}  // namespace

LocalContext local_context(const Graph& graph, const Node& node,
                           const Rule& rule, const OpConfig& config,
                           const Mesh& mesh, int rank) {
  const OpInterface interface = interface_of(rule, config);
  LocalContext context{mesh, rank, factor_axes(rule, config), {}, rule.factors};
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    context.output_shapes.push_back(
        local_shape(graph.output(node, static_cast<int>(i)).meta,
                    interface.outputs[i].value, mesh, rank));
  }
  return context;
}

LocalCall local_call(const Registry& registry, const Graph& graph,
                     const Node& node, const Rule& rule, const OpConfig& config,
                     const Mesh& mesh, int rank) {
  LocalCall call;
  call.operands =
      local_operands(graph, node, interface_of(rule, config), mesh, rank);
  call.form =
      local_form_of(registry, graph, node,
                    local_context(graph, node, rule, config, mesh, rank));
  call.work = op_work(graph, node, rule, config, mesh);
  call.random = rule.random;
  const std::string& target =
      call.form.target.empty() ? node.target : call.form.target;
  call.key = str_format("{}({}{})", target, arguments_text(node, call),
                        extra_text(call.form, mesh));
  call.family = str_format("{} {}{}", target, to_string(call.work.dtype),
                           call.work.backward ? "" : " forward");
  return call;
}

}  // namespace tensoropt
