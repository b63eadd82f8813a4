#include "problem/random_strategy.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "common/check.h"
#include "problem/propagation.h"

namespace tensoropt {

namespace {

constexpr int kMaxBacktracks = 100000;

// std::uniform_int_distribution differs between standard libraries.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t bound) { return engine_() % bound; }
  bool happens(double probability) {
    return probability > 0 && std::ldexp(engine_() >> 11, -53) < probability;
  }

 private:
  std::mt19937_64 engine_;
};

std::vector<int> configs_in(const ConfigMask& mask) {
  std::vector<int> configs;
  for (std::size_t c = 0; c < mask.size(); ++c) {
    if (mask[c]) configs.push_back(static_cast<int>(c));
  }
  return configs;
}

bool is_faster(const Choice& a, const Choice& b) { return a.time < b.time; }

double least_time(std::span<const Choice> choices) {
  return std::min_element(choices.begin(), choices.end(), is_faster)->time;
}

// Assigns configs with propagation and chronological backtracking.
class RandomAssignment {
 public:
  RandomAssignment(const Problem& problem, Random& random, double greed)
      : problem_(problem),
        random_(random),
        greed_(greed),
        propagation_(problem),
        masks_(propagation_.all_configs()),
        order_(problem.nodes.size()),
        edges_of_(problem.nodes.size()) {
    for (const Problem::Edge& edge : problem.edges) {
      edges_of_[edge.source].push_back(&edge);
      edges_of_[edge.target].push_back(&edge);
    }
    for (std::size_t n = 0; n < order_.size(); ++n) {
      order_[n] = Problem::NodeId(n);
    }
    for (std::size_t i = order_.size(); i > 1; --i) {
      std::swap(order_[i - 1], order_[random.below(i)]);
    }
  }

  std::vector<int> run() {
    const Problem::NodeId empty = propagation_.run(masks_);
    TO_CHECK(empty.is_none(),
             "node {}: none of its configs can be combined with a config of "
             "each of its neighbours; there is no strategy",
             empty);
    while (levels_.size() < order_.size()) descend();
    std::vector<int> config;
    for (const ConfigMask& mask : masks_) {
      config.push_back(configs_in(mask).front());
    }
    return config;
  }

 private:
  struct Level {
    Problem::NodeId node;
    int config;
    std::size_t first_change;
  };

  void descend() {
    const Problem::NodeId node = order_[levels_.size()];
    const std::vector<int> left = configs_in(masks_[node]);
    const int config = draw(node, left);
    levels_.push_back({node, config, changes_.size()});
    if (left.size() == 1) return;
    ConfigMask only(masks_[node].size());
    only[config] = true;
    if (!reduce(node, std::move(only)).is_none()) backtrack();
  }

  int draw(Problem::NodeId node, const std::vector<int>& left) {
    if (!random_.happens(greed_)) return left[random_.below(left.size())];
    return *std::min_element(left.begin(), left.end(), [&](int a, int b) {
      return time(node, a) < time(node, b);
    });
  }

  // Of the node in this config, and of its edges to nodes that are assigned.
  double time(Problem::NodeId node, int config) const {
    double sum = least_time(problem_.nodes[node]->choices(config));
    for (const Problem::Edge* edge : edges_of_[node]) {
      const bool forward = edge->source == node;
      const ConfigMask& mask = masks_[forward ? edge->target : edge->source];
      if (std::count(mask.begin(), mask.end(), true) != 1) continue;
      const int other = configs_in(mask).front();
      sum += least_time(forward ? edge->table->choices(config, other)
                                : edge->table->choices(other, config));
    }
    return sum;
  }

  // Returns a node without configs; none if there is no such node.
  Problem::NodeId reduce(Problem::NodeId node, ConfigMask mask) {
    changes_.emplace_back(node, masks_[node]);
    masks_[node] = std::move(mask);
    return propagation_.run_from(node, masks_, changes_);
  }

  // Takes back decisions until the last one taken back can be excluded.
  void backtrack() {
    for (Problem::NodeId empty = levels_.back().node; !empty.is_none();) {
      TO_CHECK(!levels_.empty() && ++backtracks_ < kMaxBacktracks,
               "node {}: no strategy found in {} attempts", empty, backtracks_);
      const Level level = levels_.back();
      levels_.pop_back();
      while (changes_.size() > level.first_change) {
        masks_[changes_.back().first] = std::move(changes_.back().second);
        changes_.pop_back();
      }
      ConfigMask without = masks_[level.node];
      without[level.config] = false;
      empty = level.node;
      const bool any =
          std::find(without.begin(), without.end(), true) != without.end();
      if (any) empty = reduce(level.node, std::move(without));
    }
  }

  const Problem& problem_;
  Random& random_;
  double greed_;
  Propagation propagation_;
  std::vector<ConfigMask> masks_;
  std::vector<Problem::NodeId> order_;
  IndexedVector<Problem::NodeId, std::vector<const Problem::Edge*>> edges_of_;
  std::vector<Level> levels_;
  std::vector<Propagation::Change> changes_;
  int backtracks_ = 0;
};

void add_random(std::span<const Choice> choices, Random& random, double greed,
                Strategy& strategy, std::vector<std::int32_t>& tags) {
  const Choice& choice =
      random.happens(greed)
          ? *std::min_element(choices.begin(), choices.end(), is_faster)
          : choices[random.below(choices.size())];
  strategy.memory += choice.memory;
  strategy.time += choice.time;
  tags.push_back(choice.tag);
}

}  // namespace

Strategy random_strategy(const Problem& problem, std::uint64_t seed,
                         double greed) {
  TO_CHECK(0 <= greed && greed <= 1, "greed {} is no share, 0 to 1", greed);
  validate(problem);
  Random random(seed);
  Strategy strategy;
  strategy.config = RandomAssignment(problem, random, greed).run();
  for (std::size_t n = 0; n < problem.nodes.size(); ++n) {
    add_random(problem.nodes[n]->choices(strategy.config[n]), random, greed,
               strategy, strategy.node_tag);
  }
  for (const Problem::Edge& edge : problem.edges) {
    add_random(edge.table->choices(strategy.config[edge.source],
                                   strategy.config[edge.target]),
               random, greed, strategy, strategy.edge_tag);
  }
  return strategy;
}

}  // namespace tensoropt
