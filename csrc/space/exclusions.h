// What is left out of an operator's rule before configs are listed, and why.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace tensoropt {

enum class ExclusionReason {
  kConstant,  // every device computes what depends on constants only
  kIdleDim,   // no heavy operator splits the dim (idle_dims.h)
  kIdleSum,   // leaving a sum pending there cannot pay (pending_sums.h)
  kSpatial,   // spatial dims of windows are split if the options ask for it
};

std::string_view to_string(ExclusionReason reason);

// `factor` is the name of a factor, or of a linear set as in configs ("+0").
struct Exclusion {
  NodeId node;
  ExclusionReason reason = ExclusionReason::kConstant;
  std::string factor;
};

using Exclusions = std::vector<Exclusion>;

}  // namespace tensoropt
