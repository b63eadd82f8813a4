#include "pipeline/composition.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/check.h"
#include "pipeline/step_time.h"

namespace tensoropt {

namespace {

// A part of a pipeline from some stage on.
struct Label {
  Rest rest;
  Pipeline::Stage stage;
  int next;  // the label of the stages after it, of those of the next stage
};

bool beats(const Rest& a, const Rest& b) {
  return a.round_trip <= b.round_trip && a.step <= b.step;
}

using Place = std::pair<int, int>;  // a cut and the layout there
using Places = std::map<Place, std::vector<int>>;

// The labels of one stage, at the places where it begins: none is beaten by
// another at its place.
class StageLabels {
 public:
  void add(Place place, const Label& label) {
    std::vector<int>& here = places_[place];
    const auto beaten_by = [&](int other) {
      return beats(labels_[other].rest, label.rest);
    };
    if (std::any_of(here.begin(), here.end(), beaten_by)) return;
    std::erase_if(here, [&](int other) {
      return beats(label.rest, labels_[other].rest);
    });
    here.push_back(static_cast<int>(labels_.size()));
    labels_.push_back(label);
  }

  const std::vector<int>& at(Place place) const {
    static const std::vector<int> none;
    const auto found = places_.find(place);
    return found == places_.end() ? none : found->second;
  }

  const Places& places() const { return places_; }
  const Label& operator[](int index) const { return labels_[index]; }

 private:
  std::vector<Label> labels_;
  Places places_;
};

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
            {with_stage(time_of(chosen), later, rest, shape_.micro_batches),
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

  StageTime time_of(const Pipeline::Stage& stage) const {
    const StageChoice& choice = choices_[stage.choice];
    const double both = choice.points[stage.point].time / shape_.micro_batches;
    return {both * shape_.forward_share, both * (1 - shape_.forward_share),
            choice.transfer_seconds};
  }

  Pipeline unrolled(const std::vector<StageLabels>& labels) const {
    const Label* best = nullptr;
    for (const auto& [place, here] : labels.front().places()) {
      if (place.first != 0) continue;
      for (const int index : here) {
        const Label& label = labels.front()[index];
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

void check(const StageChoice& choice, const PipelineShape& shape) {
  TO_CHECK(choice.stage >= 0 && choice.stage < shape.stages,
           "stage {} of {}: must be >= 0 and less", choice.stage, shape.stages);
  TO_CHECK(choice.first_cut >= 0 && choice.first_cut < choice.last_cut &&
               choice.last_cut <= shape.end,
           "a stage from cut {} to cut {}: the first must be >= 0, the last "
           "behind it and at most {}",
           choice.first_cut, choice.last_cut, shape.end);
  for (std::size_t i = 1; i < choice.points.size(); ++i) {
    TO_CHECK(choice.points[i - 1].memory < choice.points[i].memory &&
                 choice.points[i - 1].time > choice.points[i].time,
             "point {} of a stage's frontier is beaten by a neighbour", i);
  }
}

void check(const PipelineShape& shape) {
  TO_CHECK(shape.stages >= 1, "stages = {}: must be >= 1", shape.stages);
  TO_CHECK(shape.micro_batches >= 1, "micro_batches = {}: must be >= 1",
           shape.micro_batches);
  TO_CHECK(shape.forward_share > 0 && shape.forward_share < 1,
           "forward_share = {}: must be > 0 and < 1", shape.forward_share);
  TO_CHECK(shape.memory_step >= 0, "memory_step = {}: must be >= 0",
           shape.memory_step);
}

// Of all memories one for those that are within a step of the least of them.
std::vector<double> caps_of(const std::vector<StageChoice>& choices,
                            double step) {
  std::vector<double> memories;
  for (const StageChoice& choice : choices) {
    for (const Point& point : choice.points) memories.push_back(point.memory);
  }
  std::sort(memories.begin(), memories.end());
  std::vector<double> caps;
  double reached = 0;
  for (const double memory : memories) {
    if (caps.empty() || memory > reached) {
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
  check(shape);
  for (const StageChoice& choice : choices) check(choice, shape);
  Composer composer(choices, shape);
  std::vector<Pipeline> found;
  for (const double cap : caps_of(choices, shape.memory_step)) {
    Pipeline next = composer.within(cap);
    if (next.stages.empty()) continue;
    if (!found.empty() && next.cost.time >= found.back().cost.time) continue;
    // What takes less time under a higher cap takes more memory than the lower.
    found.push_back(std::move(next));
  }
  return found;
}

}  // namespace tensoropt
