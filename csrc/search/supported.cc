#include "search/supported.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/parallel.h"
#include "search/corners.h"

namespace tensoropt {

namespace {

// Makes both strategies equally good, at a cost of 1.
Weights between(Point a, Point b) {
  const Weights weights{.memory = a.time - b.time, .time = b.memory - a.memory};
  const double cost = weights.of(a);
  return {.memory = weights.memory / cost, .time = weights.time / cost};
}

class Search {
 public:
  Search(const MinPlusPlan& plan, const Schedule& schedule,
         const SupportedOptions& options)
      : plan_(plan), schedule_(schedule), options_(options) {}

  SupportedFrontier run() {
    ask({{.memory = 1, .time = 0}, {.memory = 0, .time = 1}});
    while (!result_.strategies.empty()) {
      const std::vector<Weights> questions = next_questions();
      if (questions.empty()) break;
      ask(questions);
    }
    return std::move(result_);
  }

 private:
  // The widest gaps that nobody has asked about.
  std::vector<Weights> next_questions() const {
    std::vector<std::pair<double, Weights>> open;
    for (std::size_t i = 0; i + 1 < result_.strategies.size(); ++i) {
      const Point a = result_.strategies[i].cost;
      const Point b = result_.strategies[i + 1].cost;
      if (a.memory > options_.memory_limit) break;
      const double width = gap_between(a, b);
      const Weights weights = between(a, b);
      if (width <= options_.epsilon || was_asked(weights)) continue;
      open.emplace_back(-width, weights);
    }
    std::stable_sort(
        open.begin(), open.end(),
        [](const auto& a, const auto& b) { return a.first < b.first; });
    const std::size_t left = options_.max_passes - result_.weights.size();
    if (open.size() > left) open.resize(left);
    std::vector<Weights> questions;
    for (const auto& [width, weights] : open) questions.push_back(weights);
    return questions;
  }

  bool was_asked(Weights weights) const {
    return std::any_of(
        result_.weights.begin(), result_.weights.end(), [&](Weights other) {
          return other.memory == weights.memory && other.time == weights.time;
        });
  }

  void ask(const std::vector<Weights>& questions) {
    std::vector<KnownStrategy> answers(questions.size());
    std::vector<char> found(questions.size(), 0);
    parallel_for(static_cast<int>(questions.size()), options_.num_threads,
                 [&](int i) {
                   MinPlusPass pass(plan_);
                   pass.run_inside(questions[i]);
                   if (std::isinf(pass.optimum())) return;
                   found[i] = 1;
                   answers[i].points = pass.trace(schedule_);
                   answers[i].cost = cost_of(answers[i].points);
                 });
    for (std::size_t i = 0; i < questions.size(); ++i) {
      result_.weights.push_back(questions[i]);
      result_.optima.push_back(questions[i].of(answers[i].cost));
      if (found[i] != 0) result_.strategies.push_back(std::move(answers[i]));
    }
    result_.strategies = pareto(std::move(result_.strategies));
  }

  Point cost_of(const std::vector<std::uint32_t>& points) const {
    Point cost;
    for (std::size_t t = 0; t < points.size(); ++t) {
      const Term& term = schedule_.terms[t];
      if (term.slot < 0) continue;
      const Frontier& frontier = plan_.table(term.expression).points;
      cost.memory += frontier.memory[points[t]];
      cost.time += frontier.time[points[t]];
    }
    return cost;
  }

  const MinPlusPlan& plan_;
  const Schedule& schedule_;
  const SupportedOptions& options_;
  SupportedFrontier result_;
};

}  // namespace

std::vector<KnownStrategy> pareto(std::vector<KnownStrategy> all) {
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(a.cost.memory, a.cost.time) <
           std::pair(b.cost.memory, b.cost.time);
  });
  std::vector<KnownStrategy> kept;
  for (KnownStrategy& strategy : all) {
    if (kept.empty() || strategy.cost.time < kept.back().cost.time) {
      kept.push_back(std::move(strategy));
    }
  }
  return kept;
}

SupportedFrontier find_supported(const MinPlusPlan& plan,
                                 const Schedule& schedule,
                                 const SupportedOptions& options) {
  return Search(plan, schedule, options).run();
}

}  // namespace tensoropt
