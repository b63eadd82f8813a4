// The collectives that reshards and operators are made of. What they cost is in
// comm/collective.h.
#pragma once

namespace tensoropt {

enum class Collective : int {
  kAllReduce = 0,
  kAllGather = 1,
  kReduceScatter = 2,
  kAllToAll = 3,
  kBroadcast = 4,
};
inline constexpr int kNumCollectives = 5;

}  // namespace tensoropt
