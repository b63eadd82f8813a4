#include "rules/registry.h"

#include <algorithm>
#include <numeric>

#include "rules/builder.h"

namespace tensoropt {

void Registry::add(std::string target, OpDefinition definition) {
  const bool added = definitions_.emplace(target, std::move(definition)).second;
  TO_ASSERT(added, "operator '{}' is registered twice", target);
}

void Registry::add_fused(const Registry& others) {
  for (const auto& [target, definition] : others.definitions_) {
    OpDefinition fused = definition;
    fused.fuses = true;
    add(target, std::move(fused));
  }
}

const OpDefinition* Registry::find(const std::string& target) const {
  const auto found = definitions_.find(target);
  return found == definitions_.end() ? nullptr : &found->second;
}

std::vector<std::string> Registry::targets() const {
  std::vector<std::string> targets;
  for (const auto& [target, definition] : definitions_) {
    targets.push_back(target);
  }
  std::sort(targets.begin(), targets.end());
  return targets;
}

const Registry& builtin_registry() {
  static const Registry registry = [] {
    Registry table;
    register_attention(table);
    register_buffers(table);
    register_complex_numbers(table);
    register_convolution(table);
    register_creation(table);
    register_distances(table);
    register_einsum(table);
    register_embedding(table);
    register_fourier(table);
    register_indexing(table);
    register_masked_scatter(table);
    register_matmul(table);
    register_matrices(table);
    register_pooling(table);
    register_rearrange(table);
    register_recurrent(table);
    register_routed_experts(table);
    register_sampling(table);
    register_sequence_losses(table);
    register_scans(table);
    register_views(table);
    Registry loops;  // over elements
    register_batch_norm(loops);
    register_elementwise(loops);
    register_losses(loops);
    register_normalization(loops);
    register_pointwise_losses(loops);
    register_random(loops);
    register_reductions(loops);
    table.add_fused(loops);
    return table;
  }();
  return registry;
}

namespace {

// Also for empty tensors.
bool divides(std::int64_t factor, std::int64_t size) {
  return factor == 0 ? size == 0 : size % factor == 0;
}

void check_dims(const Rule& rule, const TensorRule& tensor,
                const std::vector<std::int64_t>& shape, const Node& node) {
  TO_ASSERT(tensor.dims.size() == shape.size(), "rule of '{}' has wrong rank",
            node.name);
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const int factor = tensor.dims[dim];
    if (factor == kNoFactor) continue;
    TO_ASSERT(factor < static_cast<int>(rule.factors.size()) &&
                  divides(rule.factors[factor].size, shape[dim]),
              "rule of '{}': factor {} does not fit dim {} of size {}",
              node.name, factor, dim, shape[dim]);
  }
}

// Equal blocks of a factor are blocks of all its dims. Others only of dims of
// its size, or of as many units: then those of the factor are never parted.
void settle_blocks(Rule& rule, const TensorRule& tensor,
                   const TensorMeta& meta) {
  for (int dim = 0; dim < meta.rank(); ++dim) {
    if (tensor.dims[dim] == kNoFactor) continue;
    Factor& factor = rule.factors[tensor.dims[dim]];
    if (const std::int64_t unit = meta.unit(dim); unit > 1) {
      const std::int64_t count = meta.shape[dim] / unit;
      TO_ASSERT(count > 0 && factor.size % count == 0,
                "dim {} of {} entries has {} units, its factor {} entries", dim,
                meta.shape[dim], count, factor.size);
      factor.unit = std::lcm(factor.unit, factor.size / count);
    } else if (factor.size != meta.shape[dim]) {
      factor.uneven = false;
    }
  }
}

void keep_joint_factors_even(Rule& rule) {
  for (Factor& factor : rule.factors) {
    if (!factor.joint.empty()) factor.uneven = false;
    for (const int member : factor.joint) rule.factors[member].uneven = false;
  }
}

// A factor can be split only if every dim that it is bound to has entries. The
// two sides of a reshape may differ in that.
void keep_empty_dims_whole(Rule& rule, const TensorRule& tensor,
                           const std::vector<std::int64_t>& shape) {
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] > 0 || tensor.dims[dim] == kNoFactor) continue;
    const int empty = tensor.dims[dim];
    rule.factors[empty].keep_whole();
    for (Factor& factor : rule.factors) {
      if (std::count(factor.joint.begin(), factor.joint.end(), empty) > 0) {
        factor.keep_whole();
      }
    }
  }
}

// Replicated operators may save anything; assume what needs a gradient.
Rule replicated_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  double elements = 0;
  for (int i = 0; i < rule.num_operands(); ++i) {
    if (rule.operand_requires_grad(i)) rule.save_operand(i);
    elements += static_cast<double>(graph.operand(node, i).meta.num_elements());
  }
  rule.flops(elements, 2 * elements);
  rule.not_repeatable();  // nobody knows what it does
  return rule.take();
}

}  // namespace

Rule rule_of(const Registry& registry, const Graph& graph, const Node& node) {
  const OpDefinition* definition = registry.find(node.target);
  Rule rule =
      definition ? definition->rule(graph, node) : replicated_rule(graph, node);
  rule.fuses = definition && definition->fuses;
  const auto complete = [&](const TensorRule& tensor, const Value& value) {
    check_dims(rule, tensor, value.meta.shape, node);
    settle_blocks(rule, tensor, value.meta);
    keep_empty_dims_whole(rule, tensor, value.meta.shape);
  };
  for (std::size_t i = 0; i < node.operands.size(); ++i) {
    complete(rule.operands[i], graph.operand(node, static_cast<int>(i)));
  }
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    complete(rule.outputs[i], graph.output(node, static_cast<int>(i)));
  }
  keep_joint_factors_even(rule);
  return rule;
}

LocalForm local_form_of(const Registry& registry, const Graph& graph,
                        const Node& node, const LocalContext& context) {
  const OpDefinition* definition = registry.find(node.target);
  if (!definition || !definition->local) return {};
  return definition->local(graph, node, context);
}

}  // namespace tensoropt
