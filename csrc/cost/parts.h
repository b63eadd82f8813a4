// Costs in parts: what a step costs follows from them for any number of
// micro-batches, of which so many are in flight (between their forward and
// their backward) at once.
//
//   const Projection step({.micro_batches = 8, .in_flight = 2}, device);
//   step.memory_bytes(parts);   // state_bytes + 2 * kept_bytes
//   step.time_s(parts);         // 8 * micro_batch_s + step_s
//
// Both are linear in the parts, so parts add up as costs do. What is dominated
// depends on the step: project first, prune then.
#pragma once

#include "comm/cluster.h"

namespace tensoropt {

struct CostParts {
  double state_bytes = 0;    // all through a step: parameters, states
  double kept_bytes = 0;     // for backward, of one micro-batch
  double micro_batch_s = 0;  // of each micro-batch
  double network_s = 0;      // of micro_batch_s: collectives inside operators
  double step_s = 0;         // once in a step
  // Bytes of gradients that each micro-batch but the first adds to a sum.
  double added_bytes = 0;

  bool operator==(const CostParts&) const = default;
};

struct StepShape {
  int micro_batches = 1;
  int in_flight = 1;

  bool operator==(const StepShape&) const = default;
};

class Projection {
 public:
  // Throws UserError unless 1 <= in_flight <= micro_batches.
  Projection(const StepShape& shape, const Device& device);

  const StepShape& shape() const { return shape_; }

  double memory_bytes(const CostParts& parts) const {
    return parts.state_bytes + shape_.in_flight * parts.kept_bytes;
  }
  double time_s(const CostParts& parts) const {
    return shape_.micro_batches * parts.micro_batch_s + parts.step_s +
           (shape_.micro_batches - 1) * parts.added_bytes *
               addition_s_per_byte_;
  }
  double network_s(const CostParts& parts) const {
    return shape_.micro_batches * parts.network_s;
  }

 private:
  StepShape shape_;
  double addition_s_per_byte_;
};

}  // namespace tensoropt
