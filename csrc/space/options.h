// Options of a strategy space, besides the model and the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "cost/op_cost.h"
#include "rules/config.h"

namespace tensoropt {

// The dtype in which gradients are summed over devices, of parameters that are
// computed with in a narrower dtype.
enum class ReduceDType { kParameter, kCompute };

struct SpaceOptions {
  ConfigSpace config_space = ConfigSpace::kOrdered;
  TrainingSetup training = TrainingSetup::of_states(2);
  // Every rank's loader gives its own share of the batch or the same global
  // batch.
  bool sharded_inputs = false;
  // Inputs that every rank gets whole even so, by name.
  std::set<std::string> whole_inputs = {};
  // Which dim of an input has the rows of the batch, by name; others: dim 0.
  std::map<std::string, int> input_dims = {};
  // Rows are shared out along so many of the outermost mesh axes; the devices
  // of a group along the others have the same. None: along all.
  std::optional<int> row_axes = {};
  // The output that is the loss (-1: none): every rank gives it the same
  // gradient.
  int loss_output = -1;
  // Parameters and constants that are stored in this layout and no other, by
  // name.
  std::map<std::string, Layout> storage = {};
  // For each operator, parameter and relay at most so many layouts, those with
  // the fewest runs (see config.h). Bounds the growth with the devices.
  std::size_t max_configs = std::numeric_limits<std::size_t>::max();
  // Spatial dims of convolutions and pooling may be split, neighbours exchange
  // borders. Multiplies the configs of convolutional networks.
  bool split_spatial = false;
  ReduceDType reduce_dtype = ReduceDType::kParameter;
  // Bytes of a bucket of gradients that are all-reduced together, and of one of
  // parameters that are gathered, or of gradients that are reduce-scattered.
  double bucket_bytes = 0;
  double shard_bytes = 0;
  // Activation checkpointing: operators may run again in backward.
  bool recompute = false;
  // What ranks compute is compiled: loops over elements that follow each other
  // are one kernel (fusion.h).
  bool compiled = false;
  // Also configs that no good strategy needs: splits of constants, of dims that
  // are not worth it, pending sums that gain nothing. For those who ask what an
  // operator can do.
  bool idle_configs = false;
};

// Constants of so many bytes are stored in parts where that pays, smaller ones
// are whole on every device.
constexpr std::int64_t kLargeConstantBytes = std::int64_t{16} << 20;

// The dim along which each rank gets its own share of the input; -1: it gets
// all of it.
// Throws UserError if the input has no dim of which the options say so.
int shared_dim(const Graph& graph, const Node& node,
               const SpaceOptions& options);

// Each rank's share of the rows, which are in this dim.
Layout share_of_rows(int dim, const Mesh& mesh, const SpaceOptions& options);

}  // namespace tensoropt
