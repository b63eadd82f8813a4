#include "search/supporting_lines.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"
#include "search/bounds/weighted_probe.h"
#include "search/order/domains.h"
#include "search/quick_probe.h"

namespace tensoropt {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Several problems as one, whose strategies are one of each. What is best for
// all of them is so for each.
class JointProblem {
 public:
  JointProblem(const std::vector<Problem>& problems,
               const std::vector<int>& which)
      : problems_(problems), which_(which) {
    for (const int p : which_) {
      const int first_node = static_cast<int>(joint_.nodes.size());
      for (const auto& table : problems_[p].nodes) {
        joint_.nodes.push_back(table);
        of_node_.push_back(num_parts_);
      }
      for (const Problem::Edge& edge : problems_[p].edges) {
        joint_.edges.emplace_back(first_node + int{edge.source},
                                  first_node + int{edge.target}, edge.table);
        of_edge_.push_back(num_parts_);
      }
      ++num_parts_;
    }
  }

  std::vector<SupportingLines> lines(
      const SupportingLinesOptions& options) const {
    const auto quick =
        QuickProbe::of(joint_, Algorithm::kLdp, options.num_threads);
    if (quick == nullptr) return one_by_one(options);
    WeightedProbe& probe = quick->probe();
    probe.solve_between(options.epsilon,
                        {.most = options.memory_limit * num_parts_},
                        options.most);
    return lines_of(probe, quick->solution(), quick->rounding());
  }

 private:
  // Where they are too much together, or it is one that is.
  std::vector<SupportingLines> one_by_one(
      const SupportingLinesOptions& options) const {
    if (num_parts_ == 1) return {{{{.memory = 0, .time = 1}}, {0}}};
    std::vector<SupportingLines> found;
    for (const int p : which_) {
      found.push_back(JointProblem(problems_, {p}).lines(options).front());
    }
    return found;
  }

  // A strategy that is best of all as floats add them up is, at each part, best
  // up to their rounding of both.
  std::vector<SupportingLines> lines_of(const WeightedProbe& probe,
                                        const Solution& solution,
                                        double rounding) const {
    const double sure = (1 - rounding) / (1 + rounding);
    std::vector<std::vector<Point>> costs;
    for (const KnownStrategy& strategy : probe.strategies()) {
      costs.push_back(costs_by_part(strategy, solution));
    }
    std::vector<SupportingLines> found;
    for (int part = 0; part < num_parts_; ++part) {
      std::vector<double> optima;
      for (const Weights& weights : probe.weights()) {
        double least = kInfinity;
        for (const auto& cost : costs) {
          least = std::min(least, weights.of(cost[part]));
        }
        optima.push_back(sure * least);
      }
      found.emplace_back(probe.weights(), std::move(optima));
    }
    return found;
  }

  std::vector<Point> costs_by_part(const KnownStrategy& strategy,
                                   const Solution& solution) const {
    std::vector<Point> costs(num_parts_);
    const std::vector<Term>& terms = solution.schedule().terms;
    for (std::size_t t = 0; t < terms.size(); ++t) {
      if (terms[t].slot < 0) continue;
      const int id = terms[t].expression;
      const bool is_edge = solution.pool()[id].kind == Expression::Kind::kEdge;
      const int part = (is_edge ? of_edge_ : of_node_)[terms[t].slot];
      const Frontier& points = solution.tables()[id].points;
      costs[part].memory += points.memory[strategy.points[t]];
      costs[part].time += points.time[strategy.points[t]];
    }
    return costs;
  }

  const std::vector<Problem>& problems_;
  const std::vector<int> which_;
  Problem joint_;
  std::vector<int> of_node_;  // which part it is of
  std::vector<int> of_edge_;
  int num_parts_ = 0;
};

}  // namespace

SupportingLines::SupportingLines(std::vector<Weights> weights,
                                 std::vector<double> optima)
    : weights_(std::move(weights)), optima_(std::move(optima)) {
  TO_ASSERT(weights_.size() == optima_.size(), "{} weightings, {} optima",
            weights_.size(), optima_.size());
  for (std::size_t w = 0; w < weights_.size(); ++w) {
    if (weights_[w].time == 0 && weights_[w].memory > 0) {
      least_bytes_ = std::max(least_bytes_, optima_[w] / weights_[w].memory);
    }
  }
}

double SupportingLines::least_seconds(double most_bytes) const {
  if (!has_strategies() || most_bytes < least_bytes_) return kInfinity;
  double least = 0;
  for (std::size_t w = 0; w < weights_.size(); ++w) {
    const auto [memory, time] = weights_[w];
    if (time == 0) continue;
    if (memory > 0 && most_bytes == kInfinity) continue;
    const double bytes = memory > 0 ? memory * most_bytes : 0;
    least = std::max(least, (optima_[w] - bytes) / time);
  }
  return least;
}

std::vector<Point> SupportingLines::steps(
    const std::vector<double>& limits) const {
  std::vector<Point> points;
  if (!has_strategies()) return points;
  const auto add = [&](double bytes, double seconds) {
    if (points.empty() || seconds < points.back().time) {
      points.push_back({bytes, seconds});
    }
  };
  double from = least_bytes_;
  for (const double limit : limits) {
    if (limit <= from) continue;
    add(from, least_seconds(limit));
    from = limit;
  }
  add(from, least_seconds(kInfinity));
  return points;
}

std::vector<SupportingLines> supporting_lines_of(
    const std::vector<Problem>& problems,
    const SupportingLinesOptions& options) {
  std::vector<SupportingLines> found(problems.size());
  std::vector<int> with_strategies;
  for (std::size_t p = 0; p < problems.size(); ++p) {
    if (Domains(problems[p], {}).empty_node().is_none()) {
      with_strategies.push_back(static_cast<int>(p));
    }
  }
  if (with_strategies.empty()) return found;
  JointProblem joint(problems, with_strategies);
  const std::vector<SupportingLines> lines = joint.lines(options);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    found[with_strategies[i]] = lines[i];
  }
  return found;
}

SupportingLines supporting_lines(const Problem& problem,
                                 const SupportingLinesOptions& options) {
  return supporting_lines_of({problem}, options).front();
}

}  // namespace tensoropt
