// What the core knows about an operator, as data. Passes over rules know no
// operator names.
//
// A rule is like an einsum: each dim of each operand and output is an index
// (rule factor) or cannot be split. For linear, [b,k] x [n,k] -> [b,n]:
//
//   factors   b, n, k (k is a reduction: no output has it)
//   operands  {b,k} {n,k}, and a bias {n} that is additive
//   outputs   {b,n}
//
// Everything else about a split operator follows (see config.h): where an
// operand lacks a split factor its gradient is Partial, where the output lacks
// it the output is Partial.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "sharding/collective_kind.h"
#include "sharding/layout.h"

namespace tensoropt {

// Splitting a factor leaves outputs that lack it Partial, unless the per-rank
// form combines the parts itself (kCombined): then every rank has the full
// output.
enum class FactorKind { kDefault, kCombined };

struct Factor {
  std::string name;
  std::int64_t size = 1;
  FactorKind kind = FactorKind::kDefault;
  // A spatial dim of windows: neighbours lend each other borders. It is split
  // only if the space asks for it.
  bool spatial = false;
  // Splits these factors at once, over the same axis: every dim of theirs. No
  // tensor has two of them. Its own size divides theirs, no dim is bound to it.
  std::vector<int> joint = {};
  // May be split where parts are not equal: the operator, and its per-rank
  // form, are right for whatever range of it a rank has. Dims that are bound to
  // it have its size, or as many units.
  bool uneven = true;
  // How many neighbouring indices are kept together: the units of its dims.
  std::int64_t unit = 1;

  std::int64_t count() const { return size / unit; }
  // It is not split.
  void keep_whole() { size = unit = 1; }

  auto operator<=>(const Factor&) const = default;
};

constexpr int kNoFactor = -1;

// `moves` is how often the kernels of forward read the tensor from memory, or
// write it.
struct TensorRule {
  std::vector<int> dims;  // the factor of each dim, or kNoFactor
  bool saved = false;     // autograd keeps it for backward
  bool additive = false;  // operand added to a sum over reduction factors:
                          // it must be Partial where such a factor is split
  double moves = 1;

  auto operator<=>(const TensorRule&) const = default;
};

// Bytes that autograd keeps beyond operands and outputs (a mask, statistics,
// log-probabilities); splitting one of the factors divides them.
struct ExtraSaved {
  double bytes = 0;
  std::vector<int> factors;
  int only_if_split = kNoFactor;  // else nothing is kept

  auto operator<=>(const ExtraSaved&) const = default;
};

enum class Pass { kForward, kBackward };

// A collective that the per-rank form runs by itself, over all axes that split
// one of the factors `over`; none runs where these are whole. `bytes` is what
// CollectiveModel counts, of the whole tensor; splitting one of `divided_by`
// divides it.
struct InnerCollective {
  Collective kind = Collective::kAllReduce;
  std::vector<int> over;
  double bytes = 0;
  std::vector<int> divided_by;
  Pass pass = Pass::kForward;
  double times = 1;

  auto operator<=>(const InnerCollective&) const = default;
};

// An operand whose numbers are positions in something that has `size` of them.
// Others than 0 to size - 1 are an error; `wraps`: from -size on, and `ignored`
// is none.
struct Lookup {
  int operand = 0;
  std::int64_t size = 0;
  bool wraps = false;
  std::optional<std::int64_t> ignored = {};

  auto operator<=>(const Lookup&) const = default;
};

struct Rule {
  std::vector<Factor> factors;
  std::vector<TensorRule> operands;
  std::vector<TensorRule> outputs;
  // Sets of operands in which the operator is jointly linear: if all operands
  // of one set are Partial (and the others are not), so is the output.
  std::vector<std::vector<int>> linear_sets;
  double forward_flops = 0;   // of the whole operator
  double backward_flops = 0;  // likewise, for the gradients that are needed
  std::vector<ExtraSaved> extra_saved;
  std::vector<InnerCollective> collectives;
  std::vector<Lookup> lookups;
  double launches = 1;     // kernels of forward, and of backward
  bool view = false;       // no kernel runs; outputs are views of operand 0
  bool alias = false;      // a view of all of operand 0: the same bytes
  bool cast = false;       // operand 0 in another dtype
  bool random = false;     // draws random numbers
  bool attention = false;  // fused: has a rate of its own
  // A loop over elements: compilers make one kernel of such (space/fusion.h).
  bool fuses = false;
  // Running it twice does what running it once does.
  bool repeatable = true;
  bool writes = false;  // changes operands, buffers say, on every device

  auto operator<=>(const Rule&) const = default;
};

using RulesByNode = IndexedVector<NodeId, Rule>;

// How an operator is split, and the rank from whose view: its local form is
// computed from this.
struct LocalContext {
  const Mesh& mesh;
  int rank = 0;
  // Per factor: the axes that split it.
  std::vector<AxisSet> factor_axes;
  // Local shapes of the outputs.
  std::vector<Shape> output_shapes;
  std::span<const Factor> factors = {};

  int parts(int factor) const { return mesh.size_of(factor_axes[factor]); }
  int part(int factor) const {
    return mesh.index_in(factor_axes[factor], rank);
  }
  // What the rank has of a factor of this size; parts may differ.
  DimRange range(int factor, std::int64_t size) const {
    const std::int64_t unit = factors[factor].unit;
    const DimRange units =
        range_of(size / unit, factor_axes[factor], mesh, rank);
    return {unit * units.begin, unit * units.end};
  }
  // The share of a factor that the rank has; 1 if it is whole.
  double share(int factor) const {
    if (factor_axes[factor] == 0) return 1;
    const std::int64_t size = factors[factor].size;
    return static_cast<double>(range(factor, size).size()) /
           static_cast<double>(size);
  }
  // The share of this factor and all after it together.
  double share_from(int first) const {
    double product = 1;
    for (int f = first; f < static_cast<int>(factor_axes.size()); ++f) {
      product *= share(f);
    }
    return product;
  }
};

// Operand 0, split along `dim` over `axes`, is extended by `low` entries of the
// part before this one and `high` of the part after it (less than 0: cut off),
// or by `fill` at the ends: what windows that reach over the border see.
struct Halo {
  int dim = 0;
  std::int64_t low = 0;
  std::int64_t high = 0;
  double fill = 0;
  AxisSet axes = 0;

  bool operator==(const Halo&) const = default;
};

// The call changes entries `own` of a buffer, on each rank by what that has of
// the others' data. When forward has ended the buffer becomes the mean over the
// ranks along `axes`; those along `joined` change other entries.
struct AveragedBuffer {
  int operand = 0;
  DimRange own;
  AxisSet axes = 0;
  AxisSet joined = 0;

  bool operator==(const AveragedBuffer&) const = default;
};

// How the call on one rank differs from the call of the whole operator.
struct LocalForm {
  std::string target;                    // replaces the target if not empty
  std::vector<NamedArgument> arguments;  // replace literals of these names
  // For another target: its tensor arguments by the names of the original call,
  // None where that has none (by default all operands, in order), followed by
  // literals and process groups.
  std::vector<std::string> operands;
  std::vector<Literal> extra;
  std::vector<AxisSet> groups;
  std::vector<Halo> halos;  // before the call
  std::vector<AveragedBuffer> averaged;
  double scale = 1.0;  // the result is multiplied by this
};

using RuleFunction = std::function<Rule(const Graph&, const Node&)>;
using LocalFunction =
    std::function<LocalForm(const Graph&, const Node&, const LocalContext&)>;

// One operator family: its rule, and its per-rank form (empty if the call is
// the same on shards). `declaration` is what a user declared, as text; empty if
// the operator comes with the library.
struct OpDefinition {
  RuleFunction rule;
  LocalFunction local;
  std::string declaration = {};
  bool fuses = false;  // as Rule says
};

}  // namespace tensoropt
