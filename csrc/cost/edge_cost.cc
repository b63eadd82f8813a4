#include "cost/edge_cost.h"

#include <algorithm>

namespace tensoropt {

namespace {

constexpr auto kStates = static_cast<std::int32_t>(kAllSaved.size());

bool costs_no_more(const EdgeOption& option, const EdgeOption& other) {
  return option.memory_bytes <= other.memory_bytes &&
         option.time_s <= other.time_s;
}

// One micro-batch has nothing to share with others.
bool fits(const EdgeWay& way, const Projection& step) {
  return step.shape().micro_batches > 1 ||
         (!way.choice.held && !way.choice.summed);
}

// One edge between two ports.
class Crossing {
 public:
  Crossing(const EdgeSpec& edge, const ReshardTimes& times, const Port& from,
           const EndBytes& at_source, const Port& to, const EndBytes& at_target)
      : edge_(edge),
        times_(times),
        from_(from),
        at_source_(at_source),
        to_(to),
        at_target_(at_target) {}

  EdgeWays ways() const {
    EdgeWays ways;
    add_values(ways);
    add_gradients(ways);
    return ways;
  }

 private:
  void add_values(EdgeWays& ways) const {
    const bool reshards = from_.value != to_.value;
    const double once_s =
        reshards ? time_s(times_.value_s, edge_.forward_exposed) : 0;
    const double bytes_after = at_target_.kept;
    const auto add = [&](double kept_bytes, double each_s, Saved saved) {
      ways.add_value(
          {{.kept_bytes = kept_bytes, .micro_batch_s = each_s}, {saved}});
    };
    if (!edge_.consumer_saves) {
      add(0, once_s, Saved::kNothing);
    } else if (!reshards) {
      const bool same = edge_.producer_keeps && !edge_.cast_from;
      add(same ? 0 : bytes_after, once_s, Saved::kNothing);
    } else {
      if (edge_.may_keep) add(bytes_after, once_s, kept());
      const double bytes_before = this->bytes_before();
      if (edge_.may_replay && bytes_before < bytes_after) {
        const double replay_s = time_s(times_.value_s, 1);
        add(bytes_before, once_s + replay_s, Saved::kRemade);
      }
    }
    if (edge_.of_parameter && reshards && edge_.may_keep) {
      const Saved saved = edge_.consumer_saves ? kept() : Saved::kNothing;
      ways.add_value({{.state_bytes = bytes_after, .step_s = once_s},
                      {saved, /*held=*/true}});
    }
  }

  void add_gradients(EdgeWays& ways) const {
    if (!edge_.backward) return ways.add_gradient({});
    const double once_s =
        to_.gradient == from_.gradient
            ? 0
            : time_s(times_.gradient_s, edge_.backward_exposed);
    if (!edge_.of_parameter) {
      return ways.add_gradient({{.micro_batch_s = once_s}, {}});
    }
    const double bytes = at_source_.summed;
    ways.add_gradient({{.micro_batch_s = once_s, .added_bytes = bytes}, {}});
    if (to_.gradient == from_.gradient) return;
    // It takes the place of the gradient that the parameter has at the end.
    const double summed = at_target_.summed;
    ways.add_gradient({{.state_bytes = std::max(0.0, summed - bytes),
                        .step_s = once_s,
                        .added_bytes = summed},
                       {.summed = true}});
  }

  // Of the copy before the reshard, if something else does not keep it.
  double bytes_before() const {
    return edge_.producer_keeps ? 0 : at_source_.kept;
  }

  // Of a reshard that is not empty.
  double time_s(double alone_s, double exposed) const {
    return edge_.overhead_s + exposed * alone_s;
  }

  Saved kept() const {
    return edge_.producer_keeps ? Saved::kKeptTwice : Saved::kKept;
  }

  const EdgeSpec& edge_;
  const ReshardTimes& times_;
  const Port& from_;
  const EndBytes at_source_;
  const Port& to_;
  const EndBytes at_target_;
};

// What crosses the edge, before the cast.
TensorMeta uncast(const EdgeSpec& edge) {
  TensorMeta before = *edge.meta;
  before.dtype = edge.cast_from.value_or(before.dtype);
  return before;
}

}  // namespace

std::int32_t EdgeChoice::tag() const {
  return static_cast<std::int32_t>(saved) +
         kStates * ((held ? 1 : 0) + (summed ? 2 : 0));
}

EdgeChoice EdgeChoice::of(std::int32_t tag) {
  const std::int32_t rest = tag / kStates;
  return {static_cast<Saved>(tag % kStates), (rest & 1) != 0, (rest & 2) != 0};
}

void EdgeOptions::add(const EdgeOption& option) {
  const auto end = options_.begin() + size_;
  if (std::any_of(options_.begin(), end, [&](const EdgeOption& other) {
        return costs_no_more(other, option);
      })) {
    return;
  }
  const auto kept = std::remove_if(
      options_.begin(), end,
      [&](const EdgeOption& other) { return costs_no_more(option, other); });
  size_ = static_cast<std::size_t>(kept - options_.begin());
  options_[size_++] = option;
}

// Sums of gradients have the dtype of the parameter.
EndBytes source_bytes(const EdgeSpec& edge, const Mesh& mesh,
                      const Port& from) {
  const TensorMeta before = uncast(edge);
  return {local_bytes(before, from.value, mesh),
          edge.of_parameter ? local_bytes(before, from.gradient, mesh) : 0};
}

EndBytes target_bytes(const EdgeSpec& edge, const Mesh& mesh, const Port& to) {
  return {local_bytes(*edge.meta, to.value, mesh),
          edge.of_parameter ? local_bytes(uncast(edge), to.gradient, mesh) : 0};
}

EdgeWays edge_ways(const EdgeSpec& edge, const ReshardTimes& times,
                   const Port& from, const EndBytes& at_source, const Port& to,
                   const EndBytes& at_target) {
  return Crossing(edge, times, from, at_source, to, at_target).ways();
}

EdgeWays edge_ways(const EdgeSpec& edge, const Mesh& mesh,
                   const SharedResharder& values,
                   const SharedResharder& gradients, const Port& from,
                   const Port& to) {
  const auto time_s = [](const SharedResharder& resharder, const Layout& before,
                         const Layout& after) {
    return before == after ? 0 : resharder.time_s(before, after);
  };
  ReshardTimes times{.value_s = time_s(values, from.value, to.value)};
  if (edge.backward) {
    times.gradient_s = time_s(gradients, to.gradient, from.gradient);
  }
  return edge_ways(edge, times, from, source_bytes(edge, mesh, from), to,
                   target_bytes(edge, mesh, to));
}

EdgeOptions edge_options(const EdgeWays& ways, const Projection& step) {
  EdgeOptions options;
  for (const EdgeWay& value : ways.values()) {
    if (!fits(value, step)) continue;
    const double memory_bytes = step.memory_bytes(value.cost);
    const double time_s = step.time_s(value.cost);
    for (const EdgeWay& gradient : ways.gradients()) {
      if (!fits(gradient, step)) continue;
      options.add(
          {memory_bytes + step.memory_bytes(gradient.cost),
           time_s + step.time_s(gradient.cost),
           {value.choice.saved, value.choice.held, gradient.choice.summed}});
    }
  }
  return options;
}

bool is_option(const EdgeChoice& choice, const EdgeWays& ways,
               const Projection& step) {
  const auto values = ways.values();
  const auto gradients = ways.gradients();
  return std::any_of(values.begin(), values.end(),
                     [&](const EdgeWay& way) {
                       return fits(way, step) &&
                              way.choice.saved == choice.saved &&
                              way.choice.held == choice.held;
                     }) &&
         std::any_of(
             gradients.begin(), gradients.end(), [&](const EdgeWay& way) {
               return fits(way, step) && way.choice.summed == choice.summed;
             });
}

}  // namespace tensoropt
