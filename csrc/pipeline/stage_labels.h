// Parts of pipelines from some stage on, by where they begin.
//
//   StageLabels labels;
//   labels.add({cut, layout}, {rest, stage, next});
//   for (const int index : labels.at({cut, layout})) labels[index].rest;
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "pipeline/composition.h"
#include "pipeline/step_time.h"

namespace tensoropt {

struct StageLabel {
  Rest rest;
  Pipeline::Stage stage;
  int next;  // the label of the stages after it, of those of the next stage
};

// The labels of one stage, at the places where it begins: none is beaten by
// another at its place.
class StageLabels {
 public:
  using Place = std::pair<int, int>;  // a cut and the layout there

  void add(Place place, const StageLabel& label) {
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

  const std::map<Place, std::vector<int>>& places() const { return places_; }
  const StageLabel& operator[](int index) const { return labels_[index]; }

 private:
  static bool beats(const Rest& a, const Rest& b) {
    return a.round_trip <= b.round_trip && a.step <= b.step &&
           a.slowest_forward <= b.slowest_forward &&
           a.slowest_backward <= b.slowest_backward;
  }

  std::vector<StageLabel> labels_;
  std::map<Place, std::vector<int>> places_;
};

}  // namespace tensoropt
