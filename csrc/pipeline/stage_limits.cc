#include "pipeline/stage_limits.h"

#include <algorithm>
#include <limits>
#include <map>

#include "common/check.h"
#include "pipeline/stage_labels.h"

namespace tensoropt {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kBisections = 40;

// Pipelines of stages that take their least time, with less memory than a cap.
class LeastPipelines {
 public:
  LeastPipelines(const std::vector<StageChoice>& choices,
                 const PipelineShape& shape, double cap)
      : choices_(choices),
        shape_(shape),
        before_(shape.stages + 1),
        labels_(shape.stages) {
    for (const StageChoice& choice : choices) {
      least_.push_back(least_seconds(choice, cap));
    }
    find_before();
    for (int stage = shape.stages - 1; stage >= 0; --stage) find_after(stage);
  }

  // How long a choice may take in a pipeline of at most these seconds; 0 if it
  // is in none.
  double longest(int c, double seconds) const {
    const StageChoice& choice = choices_[c];
    if (least_[c] == kInfinity) return 0;
    const auto before = before_[choice.stage].find(first(choice));
    if (before == before_[choice.stage].end()) return 0;
    double found = 0;
    for (const Rest& rest : after(choice)) {
      found = std::max(found,
                       longest_before(choice, rest, seconds - before->second));
    }
    return found;
  }

 private:
  static StageLabels::Place first(const StageChoice& choice) {
    return {choice.first_cut, choice.first_layout};
  }
  static StageLabels::Place last(const StageChoice& choice) {
    return {choice.last_cut, choice.last_layout};
  }

  // Infinite if all of it has more memory.
  static double least_seconds(const StageChoice& choice, double cap) {
    double least = kInfinity;
    for (const Point& point : choice.points) {
      if (point.memory < cap) least = point.time;
    }
    return least;
  }

  int later(const StageChoice& choice) const {
    return shape_.stages - 1 - choice.stage;
  }

  // By stage and place: the least seconds till the first micro-batch is there,
  // and from the last one's backward there to the end.
  void find_before() {
    for (const StageChoice& choice : choices_) {
      if (choice.stage == 0 && choice.first_cut == 0) {
        before_.front()[first(choice)] = 0;
      }
    }
    for (int stage = 0; stage < shape_.stages; ++stage) {
      for (std::size_t c = 0; c < choices_.size(); ++c) {
        const StageChoice& choice = choices_[c];
        const auto start = before_[stage].find(first(choice));
        if (choice.stage != stage || least_[c] == kInfinity ||
            start == before_[stage].end()) {
          continue;
        }
        const double both = least_[c] / shape_.micro_batches;
        const double there = start->second + both + choice.transfer_seconds;
        double& least = before_[stage + 1]
                            .try_emplace(last(choice), kInfinity)
                            .first->second;
        least = std::min(least, there);
      }
    }
  }

  void find_after(int stage) {
    for (std::size_t c = 0; c < choices_.size(); ++c) {
      const StageChoice& choice = choices_[c];
      if (choice.stage != stage || least_[c] == kInfinity) continue;
      const StageTime time = stage_time(choice, shape_, least_[c]);
      for (const Rest& rest : after(choice)) {
        labels_[stage].add(first(choice),
                           {with_stage(time, later(choice), rest,
                                       shape_.micro_batches, shape_.schedule),
                            {},
                            -1});
      }
    }
  }

  std::vector<Rest> after(const StageChoice& choice) const {
    if (later(choice) == 0) {
      if (choice.last_cut == shape_.end) return {Rest{}};
      return {};
    }
    std::vector<Rest> rests;
    const StageLabels& labels = labels_[choice.stage + 1];
    for (const int index : labels.at(last(choice))) {
      rests.push_back(labels[index].rest);
    }
    return rests;
  }

  double longest_before(const StageChoice& choice, const Rest& rest,
                        double seconds) const {
    if (seconds == kInfinity) return kInfinity;
    const auto takes_longer = [&](double alone) {
      const StageTime time = stage_time(choice, shape_, alone);
      return with_stage(time, later(choice), rest, shape_.micro_batches,
                        shape_.schedule)
                 .step > seconds;
    };
    if (seconds <= 0 || takes_longer(0)) return 0;
    double within = 0;
    double beyond = seconds;  // a step takes at least what a stage takes
    for (int i = 0; i < kBisections; ++i) {
      const double middle = (within + beyond) / 2;
      (takes_longer(middle) ? beyond : within) = middle;
    }
    return beyond;
  }

  const std::vector<StageChoice>& choices_;
  const PipelineShape& shape_;
  std::vector<double> least_;  // by choice
  std::vector<std::map<StageLabels::Place, double>> before_;
  std::vector<StageLabels> labels_;
};

void check_known(const std::vector<Point>& known) {
  for (std::size_t i = 1; i < known.size(); ++i) {
    TO_CHECK(known[i - 1].memory < known[i].memory &&
                 known[i - 1].time > known[i].time,
             "point {} of what is known is beaten by a neighbour", i);
  }
}

}  // namespace

std::vector<std::vector<double>> longest_useful(
    const std::vector<StageChoice>& least, const PipelineShape& shape,
    const std::vector<Point>& known) {
  check(least, shape);
  check_known(known);
  std::vector<std::vector<double>> longest(
      least.size(), std::vector<double>(known.size() + 1));
  // What is useful with more memory is so with less.
  for (std::size_t i = known.size() + 1; i-- > 0;) {
    const double cap = i < known.size() ? known[i].memory : kInfinity;
    const double seconds = i > 0 ? known[i - 1].time : kInfinity;
    const LeastPipelines pipelines(least, shape, cap);
    for (std::size_t c = 0; c < least.size(); ++c) {
      longest[c][i] = pipelines.longest(static_cast<int>(c), seconds);
      if (i < known.size()) {
        longest[c][i] = std::max(longest[c][i], longest[c][i + 1]);
      }
    }
  }
  return longest;
}

}  // namespace tensoropt
