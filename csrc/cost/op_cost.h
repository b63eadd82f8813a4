// What an operator costs in one config: a roofline over its local shapes.
//
//   PassTimes times = roofline(op_work(graph, node, rule, config, mesh),
//   device); CostParts cost = op_cost(graph, node, rule, config, machine,
//   times);
//
// The time is that of forward and backward: each takes the longer of computing
// (FLOPs over the device's rate) and moving its operands and outputs through
// memory, plus the launches of its kernels and the collectives that it runs by
// itself. Those of reshards are charged on edges. Measured times take the place
// of the roofline where there are some (op_profile.h).
#pragma once

#include <map>

#include "cost/machine.h"
#include "cost/parts.h"
#include "cost/saved.h"
#include "rules/config.h"

namespace tensoropt {

// Bytes one device holds of a tensor in a layout.
double local_bytes(const TensorMeta& meta, const Layout& layout,
                   const Mesh& mesh);

// What one rank computes for one operator, forward and backward.
struct OpWork {
  DType dtype = DType::kFloat32;  // whose peak rate applies
  double forward_flops = 0;
  double backward_flops = 0;
  double bytes = 0;  // operands and outputs, through memory in forward
  double launches = 1;
  bool backward = false;  // an output has a gradient
  bool view = false;
  bool attention = false;  // at the rate of fused attention
};

OpWork op_work(const Graph& graph, const Node& node, const Rule& rule,
               const OpConfig& config, const Mesh& mesh);

// Seconds of computing in each pass, without collectives.
struct PassTimes {
  double forward_s = 0;
  double backward_s = 0;
};

PassTimes roofline(const OpWork& work, const Device& device);

// `compute` is a roofline or a measured time. An operator that is recomputed
// keeps nothing of what it makes and runs once more in backward.
CostParts op_cost(const Graph& graph, const Node& node, const Rule& rule,
                  const OpConfig& config, const Machine& machine,
                  const PassTimes& compute, Saved saved = Saved::kNothing);

// How parameters are trained.
class TrainingSetup {
 public:
  // Bytes of optimizer state for each element of a parameter, by the
  // parameter's dtype.
  using StateBytes = std::map<DType, double>;

  // Throws UserError for bytes below 0.
  explicit TrainingSetup(StateBytes state_bytes);

  // For so many state tensors of the parameter's own dtype: 2 for Adam.
  static TrainingSetup of_states(double tensors);

  // Throws UserError for a dtype that is not listed.
  double state_bytes(DType parameter) const;

 private:
  StateBytes state_bytes_;
};

// What an update moves through memory: it reads parameter, gradient and state,
// and writes parameter and state.
double update_traffic_bytes(const TensorMeta& meta, const Layout& storage,
                            const Mesh& mesh, const TrainingSetup& setup);

// Parameter, gradient and optimizer state in a storage layout, and the time of
// the optimizer's update.
CostParts parameter_cost(const TensorMeta& meta, bool trainable,
                         const Layout& storage, const Mesh& mesh,
                         const Device& device, const TrainingSetup& setup);

}  // namespace tensoropt
