// How the steps of a reshard cross from the core to the runtime: six
// integers each. Kind, dim, to_dim, group slot (an index into a list of groups,
// -1 for local steps), size of the group, index of this rank in its group.
//
// Where parts of the tensor differ in size, the kind has the bit kUneven, and
// after the six integers come a count and so many more: the elements of the
// step's operand on the rank that has most of them, the sizes of the parts of
// `dim` in the order of the ranks of the group (if the step has a dim), and
// likewise of `to_dim`. Whether a step is uneven is the same on all ranks.
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
inline constexpr int kUneven = 8;

constexpr bool is_local(StepKind kind) {
  return kind == StepKind::kSlice || kind == StepKind::kMask;
}

}  // namespace tensoropt
