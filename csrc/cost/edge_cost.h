// What an edge costs between two ports: the forward reshard of the value, the
// backward reshard of its gradient, and the bytes kept for backward. This is
// the paper's tensor reuse: what a consumer saves may be kept after the reshard
// (costs memory), or before it, and then the reshard is run again in backward
// (costs time).
//
// A step may be several micro-batches, one after the other, each of which
// crosses the edge. The edges of parameters have choices then: the value may be
// resharded once in a step and be held till its end, and gradients may be added
// up before their reshard, which then runs once.
//
//   EdgeWays ways = edge_ways(edge, mesh, values, gradients, from, to);
//   EdgeOptions options = edge_options(ways, Projection(shape, device));
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>

#include "cost/op_cost.h"
#include "cost/parts.h"
#include "cost/saved.h"
#include "reshard/shared_resharder.h"

namespace tensoropt {

// What is chosen on an edge; a strategy knows it as a tag.
struct EdgeChoice {
  // kKeptTwice is kKept where the producer side keeps its copy for other
  // reasons.
  Saved saved = Saved::kNothing;
  // Of a parameter, in a step of several micro-batches:
  bool held = false;    // resharded once, and kept for all of them
  bool summed = false;  // its gradients are added up before their reshard

  std::int32_t tag() const;
  static EdgeChoice of(std::int32_t tag);
  bool operator==(const EdgeChoice&) const = default;
};

// The tensor of an edge, by reference: specs are copied often. Compares as what
// it refers to.
class EdgeTensor {
 public:
  EdgeTensor(const TensorMeta& meta) : meta_(&meta) {}
  const TensorMeta& operator*() const { return *meta_; }
  bool operator==(const EdgeTensor& other) const { return **this == *other; }
  auto operator<=>(const EdgeTensor& other) const { return **this <=> *other; }

 private:
  const TensorMeta* meta_;
};

struct EdgeSpec {
  EdgeTensor meta;
  bool backward = false;        // the value has a gradient
  bool consumer_saves = false;  // autograd keeps the value as consumed
  bool producer_keeps = false;  // the value as produced is at hand in backward
  bool may_replay = true;       // keeping only the copy before is allowed
  double overhead_s = 0;        // of every reshard that is not empty
  // Shares of the reshards' times that a step waits for. Replays count in full.
  double forward_exposed = 1;
  double backward_exposed = 1;
  // A cast from this dtype precedes the reshard: a copy that is kept before the
  // reshard is then the input of the cast.
  std::optional<DType> cast_from = {};
  bool may_keep = true;  // keeping the copy after is allowed
  bool of_parameter = false;

  auto operator<=>(const EdgeSpec&) const = default;
};

// One way to move the value, or the gradient.
struct EdgeWay {
  CostParts cost;
  EdgeChoice choice;
};

// All ways across an edge between two ports, for every step shape. A crossing
// combines one way of the value with one of the gradient.
class EdgeWays {
 public:
  std::span<const EdgeWay> values() const {
    return {values_.data(), num_values_};
  }
  std::span<const EdgeWay> gradients() const {
    return {gradients_.data(), num_gradients_};
  }
  void add_value(const EdgeWay& way) { values_[num_values_++] = way; }
  void add_gradient(const EdgeWay& way) { gradients_[num_gradients_++] = way; }

 private:
  std::array<EdgeWay, 3> values_;
  std::array<EdgeWay, 2> gradients_;
  std::size_t num_values_ = 0;
  std::size_t num_gradients_ = 0;
};

// Seconds of the reshards of the value and of its gradient by themselves; 0
// where there is none.
struct ReshardTimes {
  double value_s = 0;
  double gradient_s = 0;
};

// Bytes of the largest part of what an edge carries, at one of its ends: of a
// copy that is kept there, and of sums of gradients.
struct EndBytes {
  double kept = 0;
  double summed = 0;
};

EndBytes source_bytes(const EdgeSpec& edge, const Mesh& mesh, const Port& from);
EndBytes target_bytes(const EdgeSpec& edge, const Mesh& mesh, const Port& to);

// For those who ask for many pairs of ports. The bytes are those of the ports.
EdgeWays edge_ways(const EdgeSpec& edge, const ReshardTimes& times,
                   const Port& from, const EndBytes& at_source, const Port& to,
                   const EndBytes& at_target);

// With the times that these reshards have.
EdgeWays edge_ways(const EdgeSpec& edge, const Mesh& mesh,
                   const SharedResharder& values,
                   const SharedResharder& gradients, const Port& from,
                   const Port& to);

struct EdgeOption {
  double memory_bytes = 0;
  double time_s = 0;  // of a step
  EdgeChoice choice;
};

// At most four options, none dominated.
class EdgeOptions {
 public:
  // Adds the option unless another dominates it, and drops those it dominates.
  void add(const EdgeOption& option);
  std::span<const EdgeOption> all() const& { return {options_.data(), size_}; }
  std::span<const EdgeOption> all() const&& = delete;  // it would outlive them

 private:
  std::array<EdgeOption, 4> options_;
  std::size_t size_ = 0;
};

// The crossings that a step of this shape may take.
EdgeOptions edge_options(const EdgeWays& ways, const Projection& step);

// Whether the choice is one of all crossings, also of those that are dominated.
bool is_option(const EdgeChoice& choice, const EdgeWays& ways,
               const Projection& step);

}  // namespace tensoropt
