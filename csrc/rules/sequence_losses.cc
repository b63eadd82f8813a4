// Losses of whole sequences: these can be split, not what is in one.

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// Log-probabilities [t, b, c], targets [b, s], two lengths [b] -> losses [b].
// Backward computes forward once more.
Rule ctc_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& log_probs = rule.operand_shape(0);
  const Shape& targets = rule.operand_shape(1);
  const int batch = rule.factor("b", log_probs[1]);
  rule.bind_operand(0, 1, batch);
  for (int i = 1; i < rule.num_operands(); ++i) {
    rule.bind_operand(i, 0, batch);
  }
  rule.bind_output(0, 0, batch);
  if (graph.output(node, 0).requires_grad) {
    for (int i = 0; i < rule.num_operands(); ++i) rule.save_operand(i);
  }
  // Three paths lead to each state of a sequence: blanks and targets.
  constexpr double kFlopsPerState = 10;
  const double states =
      static_cast<double>(log_probs[0] * log_probs[1] * (2 * targets[1] + 1));
  const double gradients =
      static_cast<double>(log_probs[0] * log_probs[1] * log_probs[2]);
  rule.flops(kFlopsPerState * states,
             2 * kFlopsPerState * states + 2 * gradients);
  return rule.take();
}

}  // namespace

void register_sequence_losses(Registry& registry) {
  registry.add("tensoropt.ctc_losses.default", {ctc_rule, {}});
}

}  // namespace tensoropt
