// Descriptions of a strategy space and of a strategy in it, as rows, for
// reports and for programs.
//
//   for (const NodeRow& row : node_rows(space)) row.name;
//   for (const EdgeRow& row : edge_rows(space, strategy)) row.saved;
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cost/edge_cost.h"
#include "cost/op_profile.h"
#include "describe/explain.h"
#include "problem/strategy.h"
#include "space/space.h"

namespace tensoropt {

// A node of the space: an operator, a parameter (without a target) or a value
// with several consumers (the target "relay").
struct NodeRow {
  std::string name;
  std::string target;
  NodeId graph_node;  // of an operator or a source
  // By config: its label; the same without what becomes of the value that the
  // node makes; and that.
  std::vector<std::string> configs;
  std::vector<std::string> splits;
  std::vector<Saved> saved;
};

// Where the value of an edge goes.
struct EdgeEnd {
  ValueId value;
  NodeId graph_node;  // which consumes it; -1: its relay
  int operand = 0;
};

// What happens to a value, and to its gradient, on the way to a consumer.
// Layouts are in words ("S0,R").
struct EdgeRow {
  std::string source;
  std::string target;
  ValueId value;
  std::string layout_from;
  std::string layout_to;
  std::string gradient_from;
  std::string gradient_to;
  Saved saved = Saved::kNothing;
  bool held = false;
  bool summed = false;
};

// An operator's work, of all devices together, and what splits it on each mesh
// axis (describe/work_splits.h).
struct WorkRow {
  std::string name;
  double flops = 0;
  std::vector<std::string> splits;
};

// The layouts of a value and of its gradient at a port, in words.
struct PortLayouts {
  std::string value;
  std::string gradient;
};

struct ConfigPorts {
  std::vector<PortLayouts> inputs;
  std::vector<PortLayouts> outputs;
};

// In which dim an output has the rows of the batch; -1: it has none.
struct OutputRow {
  int dim = -1;
  bool depends = false;  // on what has rows
};

// How many neighbouring entries of each dim are kept together; empty: one.
struct NodeUnits {
  std::vector<Shape> operands;
  std::vector<Shape> outputs;
};

// The time of an operator in a strategy, of one micro-batch, and where that is
// from.
struct EstimateRow {
  SpaceNodeId node;
  std::string name;
  std::string key;  // of the call; cost/local_call.h
  std::string family;
  std::string source;
  double time_s = 0;   // forward and backward
  double again_s = 0;  // in backward, of what is not kept
  double error = -1;
};

// Why a node has the configs that it has.
struct ExplanationRow {
  std::string name;
  std::string target;  // or "relay", or "parameter"
  NodeExplanation found;
};

std::vector<NodeRow> node_rows(const StrategySpace& space);
std::vector<EdgeEnd> edge_ends(const StrategySpace& space);
std::vector<EdgeRow> edge_rows(const StrategySpace& space,
                               const Strategy& strategy);
std::vector<WorkRow> work_rows(const StrategySpace& space,
                               const Strategy& strategy);
// By config of a node.
std::vector<ConfigPorts> port_rows(const StrategySpace& space,
                                   SpaceNodeId node);
// `dims`: in which dim inputs have rows, by name.
std::vector<OutputRow> output_rows(const StrategySpace& space,
                                   const std::map<std::string, int>& dims);
NodeUnits units_of_node(const StrategySpace& space, NodeId node);
std::vector<EstimateRow> estimate_rows(const StrategySpace& space,
                                       const OpProfile& operators,
                                       const Strategy& strategy);
std::vector<ExplanationRow> explanation_rows(const StrategySpace& space,
                                             const StepShape& shape);
// Graph nodes that cast a parameter to a narrower dtype
// (space/parameter_copies.h).
std::vector<NodeId> parameter_copies(const StrategySpace& space);

}  // namespace tensoropt
