#include "describe/named_dims.h"

#include <algorithm>
#include <limits>
#include <map>

namespace tensoropt {

namespace {

constexpr std::int64_t kNoSize = std::numeric_limits<std::int64_t>::max();

}  // namespace

NamedDims::NamedDims(const StrategySpace& space)
    : space_(space), dims_(space.model().dim_classes().bound()) {
  std::vector<std::int64_t> smallest(dims_.size(), kNoSize);
  note_smallest(smallest);
  const std::vector<bool> used = splittable();
  name_batch();
  std::map<std::int64_t, int> name_of_size;
  for (std::size_t c = 0; c < dims_.size(); ++c) {
    if (dims_[c].name == kBatch) {
      sizes_[kBatch] = std::min(sizes_[kBatch], smallest[c]);
    } else if (used[c]) {
      name_of_size[smallest[c]] = 0;
    }
  }
  for (auto& [size, name] : name_of_size) {
    name = num_names();
    sizes_.push_back(size);
  }
  for (std::size_t c = 0; c < dims_.size(); ++c) {
    if (used[c] && dims_[c].name != kBatch) {
      dims_[c].name = name_of_size.at(smallest[c]);
    }
  }
  note_weights();
  note_whole();
}

NamedDims::Dim NamedDims::of_factor(const Node& node, int factor) const {
  const Rule& rule = space_.rule(node.id);
  const int dims = space_.model().dim_classes().of_factor(node, rule, factor);
  return dims < 0 || rule.factors[factor].size == 1 ? Dim{} : dims_[dims];
}

void NamedDims::note_smallest(std::vector<std::int64_t>& smallest) const {
  for (const Value& value : space_.graph().values()) {
    for (int dim = 0; dim < value.meta.rank(); ++dim) {
      auto& size = smallest[space_.model().dim_classes().of(value.id, dim)];
      if (value.meta.shape[dim] > 1) {
        size = std::min(size, value.meta.shape[dim]);
      }
    }
  }
}

// The classes that some operator can split.
std::vector<bool> NamedDims::splittable() const {
  std::vector<bool> result(dims_.size(), false);
  for (const Node& node : space_.graph().nodes()) {
    if (node.kind != NodeKind::kOp) continue;
    const Rule& rule = space_.rule(node.id);
    for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
      const int dims = space_.model().dim_classes().of_factor(node, rule, f);
      if (dims >= 0 && rule.factors[f].size > 1) result[dims] = true;
    }
  }
  return result;
}

void NamedDims::name_batch() {
  sizes_ = {kNoSize};
  std::int64_t size = -1;
  for (const Node& node : space_.graph().nodes()) {
    if (node.kind != NodeKind::kInput) continue;
    const Value& value = space_.graph().output(node, 0);
    if (value.meta.rank() == 0) continue;
    const int dim =
        std::max(0, shared_dim(space_.graph(), node, space_.options()));
    if (size < 0) size = value.meta.shape[dim];
    if (value.meta.shape[dim] == size) {
      dims_[space_.model().dim_classes().of(value.id, dim)].name = kBatch;
    }
  }
}

void NamedDims::note_weights() {
  for (const Node& node : space_.graph().nodes()) {
    if (node.kind != NodeKind::kParameter) continue;
    const Value& value = space_.graph().output(node, 0);
    if (value.meta.rank() < 2) continue;
    for (int dim = 0; dim < value.meta.rank(); ++dim) {
      dims_[space_.model().dim_classes().of(value.id, dim)].of_weight = true;
    }
  }
}

void NamedDims::note_whole() {
  for (const Node& node : space_.graph().nodes()) {
    if (node.kind != NodeKind::kOp || space_.rule(node.id).view) continue;
    const auto& operands = space_.rule(node.id).operands;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      for (std::size_t dim = 0; dim < operands[i].dims.size(); ++dim) {
        if (operands[i].dims[dim] != kNoFactor) continue;
        const int index = static_cast<int>(dim);
        dims_[space_.model().dim_classes().of(node.operands[i], index)]
            .kept_whole = true;
      }
    }
  }
}

bool is_parameter(const StrategySpace& space, ValueId value) {
  const Node* node = &space.graph().node(space.graph().value(value).producer);
  while (node->kind == NodeKind::kOp && space.rule(node->id).view) {
    node = &space.graph().node(space.graph().operand(*node, 0).producer);
  }
  return node->kind == NodeKind::kParameter;
}

std::vector<bool> weight_factors(const StrategySpace& space, const Node& node) {
  const Rule& rule = space.rule(node.id);
  std::vector<bool> result(rule.factors.size(), false);
  for (std::size_t i = 0; i < rule.operands.size(); ++i) {
    const auto& dims = rule.operands[i].dims;
    if (dims.size() < 2 || !is_parameter(space, node.operands[i])) continue;
    for (const int factor : dims) {
      if (factor != kNoFactor) result[factor] = true;
    }
  }
  return result;
}

}  // namespace tensoropt
