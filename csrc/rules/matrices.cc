// Functions of square matrices [..., n, n]. A matrix is not split; the dims
// that count matrices are.

#include <cmath>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// FLOPs of forward are so many times n^3.
struct MatrixFunction {
  const char* target;
  double cubes;
};

constexpr MatrixFunction kFunctions[] = {
    {"linalg_slogdet.default", 2.0 / 3},
    {"slogdet.default", 2.0 / 3},
    {"logdet.default", 2.0 / 3},
    {"linalg_det.default", 2.0 / 3},
    {"det.default", 2.0 / 3},
    {"linalg_inv.default", 2},
    {"inverse.default", 2},
    {"linalg_cholesky.default", 1.0 / 3},
    {"cholesky.default", 1.0 / 3},
    {"linalg_matrix_exp.default", 20},
    {"matrix_exp.default", 20},
    {"linalg_eigvalsh.default", 9},
};

// Backward solves with the matrix, or multiplies it, about twice as often.
Rule matrix_rule(const Graph& graph, const Node& node, double cubes) {
  RuleBuilder rule(graph, node);
  const Shape& in = rule.operand_shape(0);
  const int batch = static_cast<int>(in.size()) - 2;
  double matrices = 1;
  for (int dim = 0; dim < batch; ++dim) {
    const int factor = rule.factor(str_format("b{}", dim), in[dim]);
    rule.bind_operand(0, dim, factor);
    for (int output = 0; output < rule.num_outputs(); ++output) {
      rule.bind_output(output, dim, factor);
    }
    matrices *= static_cast<double>(in[dim]);
  }
  if (graph.has_backward(node)) {
    rule.save_operand(0);
    rule.save_output(0);
  }
  const double flops =
      cubes * matrices * std::pow(static_cast<double>(in.back()), 3);
  rule.flops(flops, 2 * flops);
  return rule.take();
}

}  // namespace

void register_matrices(Registry& registry) {
  for (const MatrixFunction& function : kFunctions) {
    registry.add(
        str_format("aten.{}", function.target),
        {[cubes = function.cubes](const Graph& graph, const Node& node) {
           return matrix_rule(graph, node, cubes);
         },
         {}});
  }
}

}  // namespace tensoropt
