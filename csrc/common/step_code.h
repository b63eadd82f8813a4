// How the steps of a reshard cross from the planner to the runtime: six
// integers each. Kind, dim, to_dim, group slot (an index into a list of groups,
// -1 for local steps), size of the group, index of this rank in its group.
//
// A step is one collective over groups of ranks, or a local operation:
//
//   all-gather      S(dim) -> R
//   reduce-scatter  P      -> S(dim)
//   all-reduce      P      -> R
//   all-to-all      S(dim) -> S(to)
//   slice           R      -> S(dim)  local
//   mask            R      -> P       local: zeros on all but the first rank
#pragma once

namespace tensoropt {

enum class StepKind : int {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kSlice,
  kMask,
};

inline constexpr int kNumStepKinds = 6;
inline constexpr int kIntsPerStep = 6;

constexpr bool is_local(StepKind kind) {
  return kind == StepKind::kSlice || kind == StepKind::kMask;
}

}  // namespace tensoropt
