// Writing a rule in a few lines.
//
//   RuleBuilder rule(graph, node);
//   const int b = rule.factor("b", 8);
//   rule.bind_operand(0, 0, b);   // dim 0 of operand 0 is indexed by b
//   rule.bind_output(0, 0, b);
//   return rule.take();
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "rules/rule.h"

namespace tensoropt {

class RuleBuilder {
 public:
  // Starts with no factors: nothing can be split.
  RuleBuilder(const Graph& graph, const Node& node);

  int factor(std::string name, std::int64_t size,
             FactorKind kind = FactorKind::kDefault);
  // Split only if the space asks for it, and then evenly.
  int spatial_factor(std::string name, std::int64_t size,
                     FactorKind kind = FactorKind::kDefault);
  // Splits two factors at once (Factor::joint).
  int joint_factor(std::string name, int one, int other);
  // Requires equal parts: else operator or per-rank form would be wrong.
  void keep_even(int factor) { rule_.factors[factor].uneven = false; }
  // Requires equal parts, each of a multiple of so many neighbouring indices.
  void keep_runs(int factor, std::int64_t length) {
    rule_.factors[factor].unit = length;
    keep_even(factor);
  }
  void bind_operand(int operand, int dim, int factor);
  void bind_output(int output, int dim, int factor);
  // One factor per dim of output 0 ("d0", "d1", ...), bound to it and to the
  // dims of all operands as they broadcast against it.
  void broadcast();
  // One factor for each dim of operand 0 that is not `fixed` ("d0", "d1", ...;
  // kNoFactor for the others), bound to the same dim of every operand and
  // output of that rank and size. Returned by dim.
  std::vector<int> keep_dims(const std::vector<bool>& fixed);
  // Binds the dims of `operand` aligned at the right with the dims of output 0
  // to the factors these have.
  void broadcast_operand(int operand);

  void save_operand(int operand);
  void save_output(int output) { rule_.outputs[output].saved = true; }
  // Saves operands `a` and `b` of a product, each if the other needs it.
  void save_product(int a, int b);
  void additive(int operand) { rule_.operands[operand].additive = true; }
  // A set that is there already is not added again.
  void linear_in(std::vector<int> operands);
  void saves_extra(double bytes, std::vector<int> factors);
  // The bytes are kept only where the factor is split.
  void saves_if_split(int factor, double bytes, std::vector<int> factors);
  void runs_collective(InnerCollective collective);
  void looks_up(Lookup lookup) { rule_.lookups.push_back(lookup); }
  // Parts of operand 0 lend so many entries of a dim to their neighbours, whose
  // gradients come back.
  void lends_borders(int dim, std::int64_t entries);
  // FLOPs of a contraction of operands a and b: backward costs the same once
  // more for each of the two that needs a gradient.
  void contraction(double flops, int a, int b);
  void flops(double forward, double backward);
  void launches(double kernels) { rule_.launches = kernels; }
  void reads_operand(int operand, double times) {
    rule_.operands[operand].moves = times;
  }
  void view() { rule_.view = true; }
  void alias() { rule_.view = rule_.alias = true; }
  void random() { rule_.random = true; }
  void attention() { rule_.attention = true; }
  // Running it twice changes operands twice, such as running statistics.
  void not_repeatable() { rule_.repeatable = false; }
  // It changes operands.
  void writes() { rule_.writes = true; }

  const std::vector<std::int64_t>& operand_shape(int operand) const;
  const std::vector<std::int64_t>& output_shape(int output) const;
  bool operand_requires_grad(int operand) const;
  int num_operands() const { return static_cast<int>(rule_.operands.size()); }
  int num_outputs() const { return static_cast<int>(rule_.outputs.size()); }
  double output_elements() const;
  // The factor of a dim of output 0.
  int output_factor(int dim) const { return rule_.outputs[0].dims[dim]; }

  Rule take() { return std::move(rule_); }

 private:
  const Graph& graph_;
  const Node& node_;
  Rule rule_;
};

// Wraps a possibly negative dim.
int normalize_dim(std::int64_t dim, std::size_t rank);

// Which dims of a tensor of this rank are among `dims`.
std::vector<bool> mark_dims(const std::vector<std::int64_t>& dims,
                            std::size_t rank);

// The only dim that an integer argument names.
std::vector<bool> mark_dim(const Node& node, std::string_view argument,
                           std::int64_t fallback, std::size_t rank);

}  // namespace tensoropt
