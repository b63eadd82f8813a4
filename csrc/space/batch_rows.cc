#include "space/batch_rows.h"

#include <bit>

namespace tensoropt {

namespace {

constexpr DimSet bit_of(std::size_t dim) { return DimSet{1} << dim; }

class RowsOfNode {
 public:
  RowsOfNode(const Graph& graph, const Node& node, const Rule& rule,
             bool is_known, const IndexedVector<ValueId, BatchRows>& rows)
      : graph_(graph), node_(node), rule_(rule), rows_(rows) {
    // A rule with several operands says what becomes of the dims of each.
    keeps_places_ =
        !is_known || (node.operands.size() == 1 && !rule.view && !rule.alias);
    factors_.resize(rule.factors.size());
    for (std::size_t i = 0; i < rule.operands.size(); ++i) {
      const std::vector<int>& dims = rule.operands[i].dims;
      for (std::size_t d = 0; d < dims.size(); ++d) {
        if (dims[d] != kNoFactor && has_rows(i, d)) factors_[dims[d]] = true;
      }
    }
  }

  DimSet of_output(std::size_t output) const {
    DimSet found = 0;
    const Shape& shape =
        graph_.output(node_, static_cast<int>(output)).meta.shape;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const int factor = factor_of(rule_.outputs, output, d);
      const bool with_rows = factor == kNoFactor
                                 ? keeps_places_ && stays(d, shape[d])
                                 : bool{factors_[factor]};
      if (with_rows) found |= bit_of(d);
    }
    return found;
  }

 private:
  static int factor_of(const std::vector<TensorRule>& tensors,
                       std::size_t index, std::size_t dim) {
    if (index >= tensors.size()) return kNoFactor;
    const std::vector<int>& dims = tensors[index].dims;
    return dim < dims.size() ? dims[dim] : kNoFactor;
  }

  bool has_rows(std::size_t operand, std::size_t dim) const {
    return (rows_[node_.operands[operand]].dims & bit_of(dim)) != 0;
  }

  // Whether an operand has rows in a dim of this place and size, of which the
  // rule says nothing.
  bool stays(std::size_t dim, std::int64_t size) const {
    for (std::size_t i = 0; i < node_.operands.size(); ++i) {
      const Shape& shape =
          graph_.operand(node_, static_cast<int>(i)).meta.shape;
      if (dim < shape.size() && shape[dim] == size && has_rows(i, dim) &&
          factor_of(rule_.operands, i, dim) == kNoFactor) {
        return true;
      }
    }
    return false;
  }

  const Graph& graph_;
  const Node& node_;
  const Rule& rule_;
  const IndexedVector<ValueId, BatchRows>& rows_;
  bool keeps_places_ = false;
  std::vector<bool> factors_;  // which have rows
};

}  // namespace

int BatchRows::dim() const { return dims == 0 ? -1 : std::countr_zero(dims); }

IndexedVector<ValueId, BatchRows> find_batch_rows(const Graph& graph,
                                                  const RulesByNode& rules,
                                                  const Registry& registry,
                                                  const RowsDim& rows_dim) {
  IndexedVector<ValueId, BatchRows> rows(graph.values().size());
  for (const Node& node : graph.nodes()) {
    if (node.kind == NodeKind::kInput) {
      const int dim = rows_dim(node);
      if (dim >= 0) rows[node.outputs[0]] = {true, bit_of(dim)};
    }
    if (node.kind != NodeKind::kOp) continue;
    bool depends = false;
    for (const ValueId id : node.operands) depends |= rows[id].depends;
    if (!depends) continue;
    const RowsOfNode of_node(graph, node, rules[node.id],
                             registry.find(node.target) != nullptr, rows);
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      rows[node.outputs[i]] = {true, of_node.of_output(i)};
    }
  }
  return rows;
}

}  // namespace tensoropt
