#include "rules/builder.h"

#include <algorithm>
#include <numeric>

namespace tensoropt {

RuleBuilder::RuleBuilder(const Graph& graph, const Node& node)
    : graph_(graph), node_(node) {
  for (const ValueId id : node.operands) {
    TensorRule operand;
    operand.dims.assign(graph.value(id).meta.shape.size(), kNoFactor);
    rule_.operands.push_back(std::move(operand));
  }
  for (const ValueId id : node.outputs) {
    TensorRule output;
    output.dims.assign(graph.value(id).meta.shape.size(), kNoFactor);
    rule_.outputs.push_back(std::move(output));
  }
}

int RuleBuilder::factor(std::string name, std::int64_t size, FactorKind kind) {
  rule_.factors.push_back({std::move(name), size, kind});
  return static_cast<int>(rule_.factors.size()) - 1;
}

int RuleBuilder::spatial_factor(std::string name, std::int64_t size,
                                FactorKind kind) {
  const int index = factor(std::move(name), size, kind);
  rule_.factors[index].spatial = true;
  keep_even(index);
  return index;
}

int RuleBuilder::joint_factor(std::string name, int one, int other) {
  const int index =
      factor(std::move(name),
             std::gcd(rule_.factors[one].size, rule_.factors[other].size));
  rule_.factors[index].joint = {one, other};
  return index;
}

void RuleBuilder::bind_operand(int operand, int dim, int factor) {
  rule_.operands[operand].dims[dim] = factor;
}

void RuleBuilder::bind_output(int output, int dim, int factor) {
  rule_.outputs[output].dims[dim] = factor;
}

void RuleBuilder::broadcast() {
  const auto& shape = output_shape(0);
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    bind_output(0, static_cast<int>(dim),
                factor(str_format("d{}", dim), shape[dim]));
  }
  for (int i = 0; i < num_operands(); ++i) broadcast_operand(i);
}

std::vector<int> RuleBuilder::keep_dims(const std::vector<bool>& fixed) {
  std::vector<int> factors(fixed.size(), kNoFactor);
  const auto bind = [&](TensorRule& tensor, const Shape& shape, int dim) {
    const Shape& first = operand_shape(0);
    if (shape.size() != first.size() || shape[dim] != first[dim]) return;
    tensor.dims[dim] = factors[dim];
  };
  for (int dim = 0; dim < static_cast<int>(fixed.size()); ++dim) {
    if (fixed[dim]) continue;
    factors[dim] = factor(str_format("d{}", dim), operand_shape(0)[dim]);
    for (int i = 0; i < num_operands(); ++i) {
      bind(rule_.operands[i], operand_shape(i), dim);
    }
    for (int i = 0; i < num_outputs(); ++i) {
      bind(rule_.outputs[i], output_shape(i), dim);
    }
  }
  return factors;
}

void RuleBuilder::broadcast_operand(int operand) {
  const auto& out = output_shape(0);
  const auto& in = operand_shape(operand);
  if (in.size() > out.size()) return;
  const std::size_t offset = out.size() - in.size();
  for (std::size_t dim = 0; dim < in.size(); ++dim) {
    if (in[dim] != out[offset + dim]) continue;
    bind_operand(operand, static_cast<int>(dim),
                 rule_.outputs[0].dims[offset + dim]);
  }
}

void RuleBuilder::save_operand(int operand) {
  rule_.operands[operand].saved = true;
}

void RuleBuilder::save_product(int a, int b) {
  if (operand_requires_grad(b)) save_operand(a);
  if (operand_requires_grad(a)) save_operand(b);
}

void RuleBuilder::linear_in(std::vector<int> operands) {
  std::sort(operands.begin(), operands.end());
  auto& sets = rule_.linear_sets;
  if (std::find(sets.begin(), sets.end(), operands) == sets.end()) {
    sets.push_back(std::move(operands));
  }
}

void RuleBuilder::saves_extra(double bytes, std::vector<int> factors) {
  rule_.extra_saved.push_back({bytes, std::move(factors)});
}

void RuleBuilder::saves_if_split(int factor, double bytes,
                                 std::vector<int> factors) {
  rule_.extra_saved.push_back({bytes, std::move(factors), factor});
}

void RuleBuilder::lends_borders(int dim, std::int64_t entries) {
  const TensorMeta& meta = graph_.operand(node_, 0).meta;
  if (entries == 0 || meta.num_elements() == 0) return;
  InnerCollective exchange;
  exchange.kind = Collective::kAllToAll;
  exchange.bytes = meta.num_bytes() * static_cast<double>(entries) /
                   static_cast<double>(meta.shape[dim]);
  const std::vector<int>& dims = rule_.operands[0].dims;
  for (int other = 0; other < static_cast<int>(dims.size()); ++other) {
    if (dims[other] == kNoFactor) continue;
    (other == dim ? exchange.over : exchange.divided_by).push_back(dims[other]);
  }
  runs_collective(exchange);
  if (!operand_requires_grad(0)) return;
  exchange.pass = Pass::kBackward;
  runs_collective(exchange);
}

void RuleBuilder::runs_collective(InnerCollective collective) {
  rule_.collectives.push_back(std::move(collective));
}

void RuleBuilder::contraction(double flops, int a, int b) {
  rule_.forward_flops = flops;
  rule_.backward_flops = flops * ((operand_requires_grad(a) ? 1 : 0) +
                                  (operand_requires_grad(b) ? 1 : 0));
}

void RuleBuilder::flops(double forward, double backward) {
  rule_.forward_flops = forward;
  rule_.backward_flops = backward;
}

const std::vector<std::int64_t>& RuleBuilder::operand_shape(int i) const {
  return graph_.operand(node_, i).meta.shape;
}

const std::vector<std::int64_t>& RuleBuilder::output_shape(int i) const {
  return graph_.output(node_, i).meta.shape;
}

bool RuleBuilder::operand_requires_grad(int operand) const {
  return graph_.operand(node_, operand).requires_grad;
}

double RuleBuilder::output_elements() const {
  return static_cast<double>(graph_.output(node_, 0).meta.num_elements());
}

int normalize_dim(std::int64_t dim, std::size_t rank) {
  const auto signed_rank = static_cast<std::int64_t>(rank);
  if (dim < 0) dim += signed_rank;
  TO_ASSERT(dim >= 0 && (dim < signed_rank || signed_rank == 0),
            "dim {} out of range for rank {}", dim, rank);
  return static_cast<int>(dim);
}

std::vector<bool> mark_dims(const std::vector<std::int64_t>& dims,
                            std::size_t rank) {
  std::vector<bool> marked(rank, false);
  for (const std::int64_t dim : dims) {
    if (rank > 0) marked[normalize_dim(dim, rank)] = true;
  }
  return marked;
}

std::vector<bool> mark_dim(const Node& node, std::string_view argument,
                           std::int64_t fallback, std::size_t rank) {
  return mark_dims({node.int_argument(argument, fallback)}, rank);
}

}  // namespace tensoropt
