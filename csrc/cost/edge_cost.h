// What an edge costs between two ports: the forward reshard of the value, the
// backward reshard of its gradient, and the bytes kept for backward. This is
// the paper's tensor reuse: what a consumer saves may be kept after the reshard
// (costs memory), or before it, and then the reshard is run again in backward
// (costs time).
//
//   EdgeOptions options =
//       edge_options(edge, mesh, values, gradients, from, to);
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "cost/op_cost.h"
#include "reshard/shared_resharder.h"

namespace tensoropt {

// Which copies of a resharded tensor stay in memory for backward. kBoth is
// kAfter where the producer side keeps its copy for other reasons.
enum class Reuse : std::int32_t { kNone, kBefore, kAfter, kBoth };

std::string_view to_string(Reuse reuse);

struct EdgeSpec {
  const TensorMeta& meta;
  bool backward = false;        // the value has a gradient
  bool consumer_saves = false;  // autograd keeps the value as consumed
  bool producer_keeps = false;  // the value as produced is at hand in backward
  bool may_replay = true;       // keeping only the copy before is allowed
  double overhead_s = 0;        // of every reshard that is not empty
  // Shares of the reshards' times that a step waits for. Replays count in full.
  double forward_exposed = 1;
  double backward_exposed = 1;
  // A cast from this dtype goes before the reshard: what is kept before is then
  // what is cast.
  std::optional<DType> cast_from = {};
  bool may_keep = true;  // keeping the copy after is allowed
};

struct EdgeOption {
  double memory_bytes = 0;
  double time_s = 0;
  Reuse reuse = Reuse::kNone;
};

// At most two options, none dominated.
class EdgeOptions {
 public:
  void add(const EdgeOption& option) { options_[size_++] = option; }
  std::span<const EdgeOption> all() const { return {options_.data(), size_}; }

 private:
  std::array<EdgeOption, 2> options_;
  std::size_t size_ = 0;
};

EdgeOptions edge_options(const EdgeSpec& edge, const Mesh& mesh,
                         const SharedResharder& values,
                         const SharedResharder& gradients, const Port& from,
                         const Port& to);

}  // namespace tensoropt
