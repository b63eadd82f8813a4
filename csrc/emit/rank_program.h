// What one rank does differently from the whole model, for one strategy: the
// reshard of every value on its way to a consumer, and the per-rank form of
// every operator call.
//
//   RankProgram program(space, registry, strategy, rank);
//   program.reshard(edge);       // between producer and consumer
//   program.call(node);          // local arguments, scale, groups
#pragma once

#include <optional>
#include <vector>

#include "cost/edge_cost.h"
#include "problem/strategy.h"
#include "reshard/encode.h"
#include "space/space.h"

namespace tensoropt {

struct EmittedReshard {
  EncodedProgram forward;   // of the value, to the consumer
  EncodedProgram backward;  // of the gradient, to the producer
  EdgeChoice choice;
  // What becomes of the value before the reshard.
  Saved source_saved = Saved::kNothing;
  bool casts = false;  // the value is a copy of a parameter: a cast goes first
  DType dtype = DType::kFloat32;         // of the value
  DType reduce_dtype = DType::kFloat32;  // of its gradient on the way
  double value_bytes = 0;                // of the value as it is used
  double shard_bytes = 0;

  // Whether gradients share collectives with others
  // (runtime/gradient_bucket.h).
  bool is_bucketed() const;
  // The dim along which the value is gathered, if that may be together with
  // others (runtime/gather_bucket.h), whose parts are equal.
  std::optional<std::int64_t> gathered_dim() const;
};

// An operand to be checked before the call: its numbers are `low` to
// `high` - 1, or `ignored`. Ranks that differ along `axes` have numbers of
// their own.
struct EmittedLookup {
  int operand = 0;
  std::int64_t low = 0;
  std::int64_t high = 0;
  std::optional<std::int64_t> ignored;
  AxisSet axes = 0;

  bool operator==(const EmittedLookup&) const = default;
};

struct EmittedCall {
  LocalForm form;
  // The look-ups to check, which would raise no error by themselves, or not on
  // all ranks: another target runs, or ranks have numbers of their own.
  std::vector<EmittedLookup> lookups;
  bool random = false;
  Saved saved = Saved::kNothing;  // what it makes
  // Which shard of the output this rank makes: ranks with equal numbers must
  // draw equal random numbers.
  int shard_index = 0;
};

class RankProgram {
 public:
  // Keeps a reference to `space`, which must outlive this object.
  RankProgram(const StrategySpace& space, const Registry& registry,
              const Strategy& strategy, int rank);

  // The reshard that an edge of the space stands for.
  EmittedReshard reshard(SpaceEdgeId edge) const;

  // The layout of the gradient that the consumer of an edge makes, from which
  // the backward program of its reshard starts.
  const Layout& gradient_layout(SpaceEdgeId edge) const;

  // The call of an operator node of the graph.
  EmittedCall call(NodeId node) const;

  // The layout of an input, parameter, or operator output as it is made.
  const Layout& layout_of(ValueId value) const;

 private:
  const SpaceConfig& config_of(SpaceNodeId space_node) const;

  const StrategySpace& space_;
  const Registry& registry_;
  Strategy strategy_;
  int rank_;
};

}  // namespace tensoropt
