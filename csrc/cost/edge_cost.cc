#include "cost/edge_cost.h"

#include <algorithm>
#include <vector>

namespace tensoropt {

namespace {

constexpr auto kStates = static_cast<std::int32_t>(kAllSaved.size());

bool costs_no_more(const EdgeOption& option, const EdgeOption& other) {
  return option.memory_bytes <= other.memory_bytes &&
         option.time_s <= other.time_s;
}

// One edge between two ports. Times are those of a step.
class Crossing {
 public:
  Crossing(const EdgeSpec& edge, const Mesh& mesh,
           const SharedResharder& values, const SharedResharder& gradients,
           const Port& from, const Port& to)
      : edge_(edge),
        mesh_(mesh),
        values_(values),
        gradients_(gradients),
        from_(from),
        to_(to) {}

  EdgeOptions options() const {
    EdgeOptions options;
    for (const EdgeOption& value : value_options()) {
      for (const EdgeOption& gradient : gradient_options()) {
        options.add(
            {value.memory_bytes + gradient.memory_bytes,
             value.time_s + gradient.time_s,
             {value.choice.saved, value.choice.held, gradient.choice.summed}});
      }
    }
    return options;
  }

  bool is_option(const EdgeChoice& choice) const {
    const auto values = value_options();
    const auto gradients = gradient_options();
    return std::any_of(values.begin(), values.end(),
                       [&](const EdgeOption& option) {
                         return option.choice.saved == choice.saved &&
                                option.choice.held == choice.held;
                       }) &&
           std::any_of(gradients.begin(), gradients.end(),
                       [&](const EdgeOption& option) {
                         return option.choice.summed == choice.summed;
                       });
  }

 private:
  std::vector<EdgeOption> value_options() const {
    const double once_s =
        time_s(values_, from_.value, to_.value, edge_.forward_exposed);
    const double each_s = edge_.micro_batches * once_s;
    const double bytes_after = local_bytes(*edge_.meta, to_.value, mesh_);
    const bool reshards = from_.value != to_.value;
    std::vector<EdgeOption> options;
    if (!edge_.consumer_saves) {
      options.push_back({0, each_s, {Saved::kNothing}});
    } else if (!reshards) {
      const bool same = edge_.producer_keeps && !edge_.cast_from;
      options.push_back({same ? 0 : bytes_after, each_s, {Saved::kNothing}});
    } else {
      TensorMeta before = *edge_.meta;
      before.dtype = edge_.cast_from.value_or(before.dtype);
      const double bytes_before =
          edge_.producer_keeps ? 0 : local_bytes(before, from_.value, mesh_);
      if (edge_.may_keep) options.push_back({bytes_after, each_s, {kept()}});
      if (edge_.may_replay && bytes_before < bytes_after) {
        const double replay_s =
            edge_.micro_batches * time_s(values_, from_.value, to_.value, 1);
        options.push_back({bytes_before, each_s + replay_s, {Saved::kRemade}});
      }
    }
    if (has_choices() && reshards && edge_.may_keep) {
      const Saved saved = edge_.consumer_saves ? kept() : Saved::kNothing;
      options.push_back({bytes_after, once_s, {saved, true}});
    }
    return options;
  }

  std::vector<EdgeOption> gradient_options() const {
    if (!edge_.backward) return {EdgeOption()};
    const double once_s = time_s(gradients_, to_.gradient, from_.gradient,
                                 edge_.backward_exposed);
    const double each_s = edge_.micro_batches * once_s;
    if (!has_choices()) return {{0, each_s, {}}};
    TensorMeta sum = *edge_.meta;  // has the dtype of the parameter
    sum.dtype = edge_.cast_from.value_or(sum.dtype);
    const double bytes = local_bytes(sum, from_.gradient, mesh_);
    std::vector<EdgeOption> options = {{0, each_s + additions_s(bytes), {}}};
    if (to_.gradient != from_.gradient) {
      // It takes the place of the gradient that the parameter has at the end.
      const double summed = local_bytes(sum, to_.gradient, mesh_);
      options.push_back({std::max(0.0, summed - bytes),
                         once_s + additions_s(summed),
                         {.summed = true}});
    }
    return options;
  }

  double time_s(const SharedResharder& resharder, const Layout& before,
                const Layout& after, double exposed) const {
    if (before == after) return 0;
    return edge_.overhead_s + exposed * resharder.time_s(before, after);
  }

  double additions_s(double bytes) const {
    return (edge_.micro_batches - 1) * bytes * edge_.accumulation_s_per_byte;
  }

  bool has_choices() const {
    return edge_.of_parameter && edge_.micro_batches > 1;
  }

  Saved kept() const {
    return edge_.producer_keeps ? Saved::kKeptTwice : Saved::kKept;
  }

  const EdgeSpec& edge_;
  const Mesh& mesh_;
  const SharedResharder& values_;
  const SharedResharder& gradients_;
  const Port& from_;
  const Port& to_;
};

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

EdgeOptions edge_options(const EdgeSpec& edge, const Mesh& mesh,
                         const SharedResharder& values,
                         const SharedResharder& gradients, const Port& from,
                         const Port& to) {
  return Crossing(edge, mesh, values, gradients, from, to).options();
}

bool is_option(const EdgeChoice& choice, const EdgeSpec& edge, const Mesh& mesh,
               const SharedResharder& values, const SharedResharder& gradients,
               const Port& from, const Port& to) {
  return Crossing(edge, mesh, values, gradients, from, to).is_option(choice);
}

}  // namespace tensoropt
