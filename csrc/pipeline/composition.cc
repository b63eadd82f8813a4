#include "pipeline/composition.h"

#include <algorithm>
#include <utility>

#include "pipeline/stage_labels.h"
#include "pipeline/step_time.h"

namespace tensoropt {

namespace {

// One composition under a cap after another, for growing caps.
class Composer {
 public:
  Composer(const std::vector<StageChoice>& choices, const PipelineShape& shape)
      : choices_(choices),
        shape_(shape),
        by_stage_(shape.stages),
        fastest_(choices.size(), -1) {
    for (std::size_t c = 0; c < choices.size(); ++c) {
      by_stage_[choices[c].stage].push_back(static_cast<int>(c));
    }
  }

  // The fastest of all pipelines of no more memory; no stages if there is none.
  Pipeline within(double cap) {
    raise(cap);
    std::vector<StageLabels> labels(shape_.stages);
    for (int stage = shape_.stages - 1; stage >= 0; --stage) {
      add_labels(stage, labels);
    }
    return unrolled(labels);
  }

 private:
  void raise(double cap) {
    for (std::size_t c = 0; c < choices_.size(); ++c) {
      const std::vector<Point>& points = choices_[c].points;
      const int last = static_cast<int>(points.size()) - 1;
      while (fastest_[c] < last && points[fastest_[c] + 1].memory <= cap) {
        ++fastest_[c];
      }
    }
  }

  void add_labels(int stage, std::vector<StageLabels>& labels) const {
    const int later = shape_.stages - 1 - stage;
    for (const int c : by_stage_[stage]) {
      const StageChoice& choice = choices_[c];
      if (fastest_[c] < 0) continue;
      const Pipeline::Stage chosen{c, fastest_[c]};
      const auto add = [&](const Rest& rest, int next) {
        labels[stage].add(
            {choice.first_cut, choice.first_layout},
            {with_stage(
                 stage_time(choice, shape_, choice.points[chosen.point].time),
                 later, rest, shape_.micro_batches, shape_.schedule),
             chosen, next});
      };
      if (later == 0) {
        if (choice.last_cut == shape_.end) add({}, -1);
        continue;
      }
      const StageLabels& after = labels[stage + 1];
      for (const int next : after.at({choice.last_cut, choice.last_layout})) {
        add(after[next].rest, next);
      }
    }
  }

  Pipeline unrolled(const std::vector<StageLabels>& labels) const {
    const StageLabel* best = nullptr;
    for (const auto& [place, here] : labels.front().places()) {
      if (place.first != 0) continue;
      for (const int index : here) {
        const StageLabel& label = labels.front()[index];
        if (!best || label.rest.step < best->rest.step) best = &label;
      }
    }
    Pipeline found;
    if (!best) return found;
    found.cost.time = best->rest.step;
    for (std::size_t stage = 0;; best = &labels[stage][best->next]) {
      const Pipeline::Stage chosen = best->stage;
      found.stages.push_back(chosen);
      const Point& point = choices_[chosen.choice].points[chosen.point];
      found.cost.memory = std::max(found.cost.memory, point.memory);
      if (++stage == labels.size()) return found;
    }
  }

  const std::vector<StageChoice>& choices_;
  const PipelineShape& shape_;
  std::vector<std::vector<int>> by_stage_;
  std::vector<int> fastest_;  // by choice: its point under the cap, -1: none
};

// Of all memories one for those that are within a step of the least of them.
std::vector<double> caps_of(const std::vector<StageChoice>& choices,
                            double step, const std::vector<double>& limits) {
  std::vector<double> memories = limits;
  for (const StageChoice& choice : choices) {
    for (const Point& point : choice.points) memories.push_back(point.memory);
  }
  std::sort(memories.begin(), memories.end());
  const auto is_limit = [&](double memory) {
    return std::find(limits.begin(), limits.end(), memory) != limits.end();
  };
  std::vector<double> caps;
  double reached = 0;
  for (const double memory : memories) {
    if (caps.empty() || memory > reached || is_limit(caps.back())) {
      caps.push_back(memory);
      reached = (1 + step) * memory;
    } else {
      caps.back() = memory;
    }
  }
  return caps;
}

}  // namespace

std::vector<Pipeline> compose(const std::vector<StageChoice>& choices,
                              const PipelineShape& shape) {
  check(choices, shape);
  Composer composer(choices, shape);
  std::vector<Pipeline> found;
  for (const double cap :
       caps_of(choices, shape.memory_step, shape.pick_limits)) {
    Pipeline next = composer.within(cap);
    if (next.stages.empty()) continue;
    if (!found.empty() && next.cost.time >= found.back().cost.time) continue;
    // What takes less time under a higher cap takes more memory than the lower.
    found.push_back(std::move(next));
  }
  return found;
}

}  // namespace tensoropt
