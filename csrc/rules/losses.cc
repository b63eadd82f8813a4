// Losses of classes. A mean over split elements is that of all ranks where they
// may have different numbers of valid targets, and Partial where all have
// equally many: then each rank gives its share of the global mean. A sum over
// split elements is Partial.

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

constexpr std::int64_t kNone = 0;
constexpr std::int64_t kMean = 1;

// Elements whose targets are class indices: logits [n, c, ...], targets
// [n, ...]. Factor 0 is the class, the others are the positions.
struct ClassLoss {
  static constexpr int kClass = 0;
  bool index_target = true;  // else probabilities of the logits' shape
  bool weighted = false;
  std::int64_t reduction = kMean;
  std::int64_t ignore_index = -100;
  double smoothing = 0;

  ClassLoss(const Graph& graph, const Node& node)
      : index_target(!is_floating_point(graph.operand(node, 1).meta.dtype)),
        weighted(node.operand_index("weight") >= 0),
        reduction(node.int_argument("reduction", kMean)),
        ignore_index(node.int_argument("ignore_index", -100)),
        smoothing(node.double_argument("label_smoothing", 0)) {}

  // Ranks add up what belongs to their targets.
  bool counts() const { return reduction == kMean && index_target; }
};

// Binds position dims of logits (all but the class dim) and targets.
std::vector<int> bind_positions(RuleBuilder& rule, const ClassLoss& loss,
                                int class_dim) {
  std::vector<int> factors;
  const auto& logits = rule.operand_shape(0);
  for (int dim = 0; dim < static_cast<int>(logits.size()); ++dim) {
    if (dim == class_dim) continue;
    const int factor = rule.factor(
        str_format("t{}", factors.size()), logits[dim],
        loss.counts() ? FactorKind::kCombined : FactorKind::kDefault);
    const int position = static_cast<int>(factors.size());
    rule.bind_operand(0, dim, factor);
    rule.bind_operand(1, loss.index_target ? position : dim, factor);
    if (loss.reduction == kNone) rule.bind_output(0, position, factor);
    factors.push_back(factor);
  }
  return factors;
}

// Losses of all ranks are summed, and the number of their valid targets or the
// weight of these.
void declare_mean(RuleBuilder& rule, const ClassLoss& loss,
                  const std::vector<int>& positions) {
  if (!loss.counts()) return;
  constexpr double kBytes = 2 * 8;
  rule.runs_collective(
      {Collective::kAllReduce, positions, kBytes, {}, Pass::kForward});
}

// Maxima of all positions, then sums of exponentials, the logits of the targets
// and for smoothing all logits, in the type that the loss is computed in.
void declare_vocabulary(RuleBuilder& rule, const TensorMeta& logits,
                        bool smoothed, const std::vector<int>& positions) {
  constexpr int classes = ClassLoss::kClass;
  const double bytes = static_cast<double>(logits.num_elements()) /
                       static_cast<double>(logits.shape[1]) *
                       (logits.dtype == DType::kFloat64 ? 8 : 4);
  for (const double tensors : {1, smoothed ? 3 : 2}) {
    rule.runs_collective({Collective::kAllReduce,
                          {classes},
                          tensors * bytes,
                          positions,
                          Pass::kForward});
  }
}

// Classes can be split where the per-rank form combines maxima and sums over
// the ranks that hold a position: not with weights or probabilities, of which a
// rank would need those of its classes only, and not for a loss of each
// position.
Rule class_loss_rule(const Graph& graph, const Node& node,
                     bool vocabulary_parallel) {
  RuleBuilder rule(graph, node);
  const ClassLoss loss(graph, node);
  const auto& logits = rule.operand_shape(0);
  const int class_dim = logits.size() > 1 ? 1 : 0;
  const bool split_classes = vocabulary_parallel && logits.size() > 1 &&
                             loss.index_target && !loss.weighted &&
                             loss.reduction != kNone;
  const int classes = rule.factor("c", split_classes ? logits[class_dim] : 1,
                                  FactorKind::kCombined);
  if (split_classes) rule.bind_operand(0, class_dim, classes);
  if (loss.index_target) {
    rule.looks_up({.operand = 1,
                   .size = logits[class_dim],
                   .ignored = loss.ignore_index});
  }
  std::vector<int> factors = bind_positions(rule, loss, class_dim);
  declare_mean(rule, loss, factors);
  if (split_classes) {
    declare_vocabulary(rule, graph.operand(node, 0).meta, loss.smoothing > 0,
                       factors);
  }
  const double elements =
      static_cast<double>(graph.operand(node, 0).meta.num_elements());
  rule.save_operand(1);
  factors.push_back(classes);
  if (vocabulary_parallel && graph.output(node, 0).requires_grad) {
    rule.saves_extra(graph.operand(node, 0).meta.num_bytes(), factors);
  }
  rule.flops(6 * elements, 3 * elements);
  return rule.take();
}

Rule cross_entropy_rule(const Graph& graph, const Node& node) {
  return class_loss_rule(graph, node, true);
}

Rule nll_rule(const Graph& graph, const Node& node) {
  return class_loss_rule(graph, node, false);
}

// The axes that split positions, which are the factors after that of the class.
AxisSet position_axes(const LocalContext& context) {
  AxisSet axes = 0;
  for (std::size_t f = 1; f < context.factor_axes.size(); ++f) {
    axes |= context.factor_axes[f];
  }
  return axes;
}

LocalForm cross_entropy_local(const Graph& graph, const Node& node,
                              const LocalContext& context) {
  const ClassLoss loss(graph, node);
  const AxisSet classes = context.factor_axes[ClassLoss::kClass];
  const AxisSet positions = position_axes(context);
  LocalForm form;
  if (classes != 0) {
    const auto& logits = graph.operand(node, 0).meta.shape;
    form.target = "tensoropt.cross_entropy_vocab.default";
    form.extra = {loss.reduction, loss.ignore_index, loss.smoothing, logits[1],
                  context.range(ClassLoss::kClass, logits[1]).begin};
    form.groups = {classes, loss.reduction == kMean ? positions : 0};
  } else if (positions != 0 && loss.reduction == kMean) {
    if (!loss.counts()) {
      form.scale = context.share_from(ClassLoss::kClass + 1);
      return form;
    }
    form.target = "tensoropt.cross_entropy_sharded.default";
    form.operands = {"self", "target", "weight"};
    form.extra = {loss.reduction, loss.ignore_index, loss.smoothing};
    form.groups = {positions};
  }
  return form;
}

LocalForm nll_local(const Graph& graph, const Node& node,
                    const LocalContext& context) {
  const ClassLoss loss(graph, node);
  const AxisSet positions = position_axes(context);
  LocalForm form;
  if (positions == 0 || loss.reduction != kMean) return form;
  form.target = "tensoropt.nll_loss_sharded.default";
  form.operands = {"self", "target", "weight"};
  form.extra = {loss.ignore_index};
  form.groups = {positions};
  return form;
}

}  // namespace

void register_losses(Registry& registry) {
  registry.add("aten.cross_entropy_loss.default",
               {cross_entropy_rule, cross_entropy_local});
  for (const char* target :
       {"aten.nll_loss_nd.default", "aten.nll_loss.default"}) {
    registry.add(target, {nll_rule, nll_local});
  }
}

}  // namespace tensoropt
