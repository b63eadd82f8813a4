// Losses that are a mean or sum of one number for each element, or for each row
// of elements. Means and sums over split elements are Partial; a rank's mean is
// its share of the global one.

#include <algorithm>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

constexpr std::int64_t kNone = 0;
constexpr std::int64_t kMean = 1;

// The operands that are compared (the others are weights, which broadcast), and
// how many of their last dims make one number together.
struct PointwiseLoss {
  const char* target;
  int compared = 2;
  int row_dims = 0;
};

constexpr PointwiseLoss kLosses[] = {
    {"mse_loss.default"},
    {"l1_loss.default"},
    {"smooth_l1_loss.default"},
    {"huber_loss.default"},
    {"binary_cross_entropy.default"},
    {"binary_cross_entropy_with_logits.default"},
    {"kl_div.default"},
    {"soft_margin_loss.default"},
    {"poisson_nll_loss.default"},
    {"hinge_embedding_loss.default"},
    {"margin_ranking_loss.default", 3},
    {"triplet_margin_loss.default", 3, 1},
    {"cosine_embedding_loss.default", 2, 1},
    {"multi_margin_loss.default", 1, 1},
    {"multilabel_margin_loss.default", 2, 1},
};

// Operands of one shape are split alike; where shapes differ the loss runs
// whole (most of torch.nn.functional broadcasts before it calls the operator).
bool alike(const RuleBuilder& rule, int compared) {
  for (int i = 1; i < compared; ++i) {
    if (rule.operand_shape(i) != rule.operand_shape(0)) return false;
  }
  return true;
}

// Binds an operand that is aligned with the dims of the numbers at the right,
// or, one number for each row, at the left.
void bind_other(RuleBuilder& rule, int operand, int row_dims,
                const std::vector<int>& factors) {
  const auto& shape = rule.operand_shape(operand);
  const auto& whole = rule.operand_shape(0);
  const int rank = static_cast<int>(shape.size());
  const int offset = row_dims > 0 ? 0 : static_cast<int>(whole.size()) - rank;
  for (int dim = 0; dim < rank; ++dim) {
    const int at = dim + offset;
    if (at < 0 || at >= static_cast<int>(factors.size())) continue;
    if (shape[dim] == whole[at]) rule.bind_operand(operand, dim, factors[at]);
  }
}

Rule loss_rule(const Graph& graph, const Node& node,
               const PointwiseLoss& loss) {
  RuleBuilder rule(graph, node);
  const Shape shape = rule.operand_shape(0);
  const bool none = node.int_argument("reduction", kMean) == kNone;
  const int dims =
      alike(rule, loss.compared)
          ? std::max(0, static_cast<int>(shape.size()) - loss.row_dims)
          : 0;
  std::vector<int> factors;
  for (int dim = 0; dim < dims; ++dim) {
    factors.push_back(rule.factor(str_format("d{}", dim), shape[dim]));
    for (int i = 0; i < loss.compared; ++i) {
      rule.bind_operand(i, dim, factors.back());
    }
    if (none) rule.bind_output(0, dim, factors.back());
  }
  for (int i = loss.compared; i < rule.num_operands(); ++i) {
    // Weights of classes are no numbers of rows.
    if (i == node.operand_index("weight") && loss.row_dims > 0) continue;
    bind_other(rule, i, loss.row_dims, factors);
  }
  for (int i = 0; i < rule.num_operands(); ++i) rule.save_operand(i);
  const double elements =
      static_cast<double>(graph.operand(node, 0).meta.num_elements());
  rule.flops(3 * elements, 3 * elements);
  return rule.take();
}

LocalForm loss_local(const Graph&, const Node& node,
                     const LocalContext& context) {
  LocalForm form;
  if (node.int_argument("reduction", kMean) == kMean) {
    form.scale = context.share_from(0);
  }
  return form;
}

}  // namespace

void register_pointwise_losses(Registry& registry) {
  for (const PointwiseLoss& loss : kLosses) {
    registry.add(str_format("aten.{}", loss.target),
                 {[loss](const Graph& graph, const Node& node) {
                    return loss_rule(graph, node, loss);
                  },
                  loss_local});
  }
}

}  // namespace tensoropt
