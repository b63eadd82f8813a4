// The call of an operator as one rank makes it in one config, described by what
// its time depends on. Calls with equal keys take equal time, in whichever
// model and strategy they occur.
//
//   LocalCall call = local_call(registry, graph, node, rule, config, mesh);
//   call.key;   // "aten.linear.default(float32[4,8]g,float32[16,8]g,None)"
//
// By default it is the call of rank 0, whose parts are the largest.
#pragma once

#include <string>
#include <vector>

#include "cost/op_cost.h"
#include "rules/registry.h"

namespace tensoropt {

struct LocalOperand {
  TensorMeta meta;  // of the rank's part
  bool requires_grad = false;
};

struct LocalCall {
  std::string key;
  std::string family;  // calls that differ in sizes and literals only
  std::vector<LocalOperand> operands;
  LocalForm form;
  OpWork work;
  bool random = false;  // draws random numbers
};

// What the local form of an operator depends on, on one rank.
LocalContext local_context(const Graph& graph, const Node& node,
                           const Rule& rule, const OpConfig& config,
                           const Mesh& mesh, int rank);

LocalCall local_call(const Registry& registry, const Graph& graph,
                     const Node& node, const Rule& rule, const OpConfig& config,
                     const Mesh& mesh, int rank = 0);

}  // namespace tensoropt
