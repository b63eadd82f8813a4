// Problems far beyond those of today's models, in size and in costs: a search
// ends with strategies that exist, or with an error, whatever it is given.
//
// TENSOROPT_FUZZ_COUNT says how many, TENSOROPT_FUZZ_SEED where they begin;
// `make fuzz` runs many of them with sanitizers.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "problem/brute_force.h"
#include "problem/random_problem.h"
#include "search/checks.h"
#include "search/frontier_tracking.h"
#include "search/order/elimination.h"
#include "search/scheduled.h"

namespace tensoropt::testing {
namespace {

using NodePtr = std::shared_ptr<const NodeTable>;
using EdgePtr = std::shared_ptr<const EdgeTable>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Sums in another order round differently.
constexpr double kRounding = 1e-9;

std::uint64_t number_from_environment(const char* name, std::uint64_t other) {
  const char* text = std::getenv(name);
  return text == nullptr ? other : std::strtoull(text, nullptr, 10);
}

// --- Costs ------------------------------------------------------------------

enum class CostKind { kSmall, kAnySize, kZeros, kDenormal, kHuge, kMixed };

double any_cost(Dice& dice, CostKind kind) {
  const double digits = 1 + dice.roll(0, 999999) * 1e-6;
  switch (kind) {
    case CostKind::kSmall:
      return dice.roll(0, 30);
    case CostKind::kAnySize:
      return digits * std::pow(10.0, dice.roll(-12, 15));
    case CostKind::kZeros:
      return dice.chance(80) ? 0 : digits;
    case CostKind::kDenormal:
      return digits * std::numeric_limits<double>::denorm_min() *
             dice.roll(0, 1000);
    case CostKind::kHuge:
      return digits * 4e299;
    case CostKind::kMixed:
      break;
  }
  return any_cost(dice, static_cast<CostKind>(dice.roll(0, 4)));
}

struct TableKind {
  CostKind memory;
  CostKind time;
  int max_choices;
  int density;
};

TableKind any_kind(Dice& dice) {
  return {static_cast<CostKind>(dice.roll(0, 5)),
          static_cast<CostKind>(dice.roll(0, 5)),
          dice.chance(20) ? dice.roll(4, 12) : dice.roll(1, 3),
          dice.chance(80) ? 100 : dice.roll(30, 100)};
}

std::vector<Choice> any_choices(Dice& dice, const TableKind& kind) {
  std::vector<Choice> choices(dice.roll(1, kind.max_choices));
  for (std::size_t i = 0; i < choices.size(); ++i) {
    choices[i] = {any_cost(dice, kind.memory), any_cost(dice, kind.time),
                  static_cast<std::int32_t>(i)};
  }
  return choices;
}

NodePtr any_node(Dice& dice, const TableKind& kind, int num_configs) {
  std::vector<std::vector<Choice>> choices(num_configs);
  for (auto& list : choices) list = any_choices(dice, kind);
  return std::make_shared<NodeTable>(std::move(choices));
}

EdgePtr any_edge(Dice& dice, const TableKind& kind, int sources, int targets) {
  EdgeTable::Builder builder(sources, targets);
  for (int s = 0; s < sources; ++s) {
    for (int t = 0; t < targets; ++t) {
      if ((s > 0 || t > 0) && !dice.chance(kind.density)) continue;
      for (const Choice& c : any_choices(dice, kind)) builder.add(s, t, c);
    }
  }
  return std::move(builder).build();
}

// --- Graphs -----------------------------------------------------------------

// Between 1 and `most`, small ones as often as large ones.
int any_size(Dice& dice, int most) {
  const double share = dice.roll(0, 1000) * 1e-3;
  return std::max(1, static_cast<int>(std::lround(std::pow(most, share))));
}

// Layers of a few nodes, one behind the other; hubs reach into all of them.
Pairs layers_with_hubs(Dice& dice, int n) {
  const int hubs = std::min(n - 1, dice.roll(1, 5));
  Pairs pairs = chain(n - hubs);
  for (int hub = n - hubs; hub < n; ++hub) {
    const int every = dice.roll(1, 3);
    for (int i = 0; i < n - hubs; i += every) pairs.emplace_back(hub, i);
  }
  return pairs;
}

Pairs star(Dice& dice, int n) {
  Pairs pairs;
  for (int i = 1; i < n; ++i) pairs.emplace_back(0, i);
  if (dice.chance(50)) return pairs;
  for (int i = 1; i + 1 < n; i += 2) pairs.emplace_back(i, i + 1);
  return pairs;
}

Pairs parallel_edges(Dice& dice, int n) {
  Pairs pairs = chain(n);
  const std::size_t count = pairs.size();
  for (std::size_t i = 0; i < count; ++i) {
    for (int more = dice.roll(0, 4); more > 0; --more) {
      pairs.push_back(pairs[i]);
    }
  }
  return pairs;
}

struct Drawn {
  std::string name;
  Problem problem;
};

Shape any_shape(Dice& dice) {
  const int n = 2 + any_size(dice, dice.chance(10) ? 300 : 30);
  const int few = std::min(n, 24);
  switch (dice.roll(0, 8)) {
    case 0:
      return {"chain", n, chain(n)};
    case 1:
      return {"tree", n, random_tree(dice, n)};
    case 2:
      return {"layers with hubs", n, layers_with_hubs(dice, n)};
    case 3:
      return {"star", n, star(dice, n)};
    case 4:
      return {"skips", n + 1, skips(dice, n + 1)};
    case 5:
      return {"series parallel", n, series_parallel(dice, n)};
    case 6:
      return {"parallel edges", n, parallel_edges(dice, n)};
    case 7:
      return {"any graph", few, any_graph(dice, few, dice.roll(2, 60))};
    default:
      return {"complete", few, complete(few)};
  }
}

// Tables are shared by many nodes and edges, as those of equal layers are, and
// have so many configs that all fit into a test.
Drawn any_problem(Dice& dice) {
  const Shape shape = any_shape(dice);
  const TableKind kind = any_kind(dice);
  const double edges = static_cast<double>(shape.pairs.size() + 1);
  const bool shared = dice.chance(70);
  const double room = 3e3 / (shared ? 4.0 : edges) / kind.max_choices;
  const int most = std::clamp(static_cast<int>(std::sqrt(room)), 2, 60);
  std::array<NodePtr, 3> kinds;
  for (NodePtr& table : kinds) {
    table = any_node(dice, kind, any_size(dice, most));
  }
  Problem problem;
  for (int i = 0; i < shape.num_nodes; ++i) {
    problem.nodes.push_back(
        shared ? kinds[i % 3] : any_node(dice, kind, any_size(dice, most)));
  }
  std::map<std::pair<const void*, const void*>, EdgePtr> made;
  for (const auto& [a, b] : shape.pairs) {
    EdgePtr& table = made[{problem.nodes[a].get(), problem.nodes[b].get()}];
    if (table == nullptr || !shared) {
      table = any_edge(dice, kind, problem.nodes[a]->num_configs(),
                       problem.nodes[b]->num_configs());
    }
    problem.edges.push_back({a, b, table});
  }
  return {shape.name, std::move(problem)};
}

SearchOptions any_options(Dice& dice) {
  SearchOptions options;
  options.num_threads = dice.chance(90) ? 1 : 2;
  options.epsilon = std::array{0.03, 0.1, 0.5}[dice.roll(0, 2)];
  options.max_conditioning_work =
      std::array{0.0, 1e4, 1e5, 1e6, 1e6}[dice.roll(0, 4)];
  options.many_cells = dice.chance(50) ? 1 : 100000;
  options.use_bounds = dice.chance(90);
  if (dice.chance(10)) options.algorithm = Algorithm::kElimination;
  if (dice.chance(20)) {
    options.pick_limits = {any_cost(dice, CostKind::kMixed)};
  }
  if (dice.chance(10)) {
    options.memory_limit = any_cost(dice, CostKind::kMixed);
  }
  return options;
}

// --- Checks -----------------------------------------------------------------

bool is_close(double a, double b) {
  return std::abs(a - b) <= kRounding * std::max(a, b);
}

void expect_exists(const Problem& problem, const SearchResult& result,
                   double memory_limit) {
  const std::span<const Point> points = result.points();
  for (std::size_t i = 0; i < points.size(); ++i) {
    EXPECT_LE(points[i].memory, memory_limit);
    if (i > 0) {
      EXPECT_LT(points[i - 1].memory, points[i].memory);
      EXPECT_GT(points[i - 1].time, points[i].time);
    }
    if (i > 3 && i + 3 < points.size()) continue;
    const Strategy strategy = result.unroll(static_cast<int>(i));
    const Cost cost = recompute(problem, strategy);
    EXPECT_TRUE(is_close(cost.memory, points[i].memory)) << cost.memory;
    EXPECT_TRUE(is_close(cost.time, points[i].time)) << cost.time;
  }
}

// The least sum of one cost over the configs of a graph without cycles, from
// the leaves up; nothing if it has cycles.
class TreeOracle {
 public:
  TreeOracle(const Problem& problem, double Choice::*cost)
      : problem_(problem), cost_(cost), near_(problem.nodes.size()) {
    for (std::size_t e = 0; e < problem.edges.size(); ++e) {
      near_[problem.edges[e].source].push_back(e);
      near_[problem.edges[e].target].push_back(e);
    }
  }

  std::optional<double> least() const {
    if (problem_.edges.size() + 1 != problem_.nodes.size()) return {};
    std::vector<std::pair<int, int>> order{{0, -1}};  // node, edge to parent
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto [node, from] = order[i];
      for (const std::size_t e : near_[node]) {
        if (static_cast<int>(e) == from) continue;
        order.emplace_back(other_end(e, node), e);
        if (order.size() > problem_.nodes.size()) return {};
      }
    }
    if (order.size() != problem_.nodes.size()) return {};
    std::vector<std::vector<double>> sums;
    for (const auto& node : problem_.nodes) {
      for (auto& sum = sums.emplace_back(); sum.size() < size_of(*node);) {
        sum.push_back(least_of(node->choices(static_cast<int>(sum.size()))));
      }
    }
    for (std::size_t i = order.size(); i-- > 1;) {
      push_up(order[i].first, order[i].second, sums);
    }
    return *std::min_element(sums[0].begin(), sums[0].end());
  }

 private:
  static std::size_t size_of(const NodeTable& node) {
    return static_cast<std::size_t>(node.num_configs());
  }
  int other_end(std::size_t edge, int node) const {
    const Problem::Edge& ends = problem_.edges[edge];
    return ends.source == node ? ends.target : ends.source;
  }
  double least_of(std::span<const Choice> choices) const {
    double least = kInfinity;
    for (const Choice& choice : choices) least = std::min(least, choice.*cost_);
    return least;
  }
  void push_up(int node, int edge,
               std::vector<std::vector<double>>& sums) const {
    const Problem::Edge& ends = problem_.edges[edge];
    std::vector<double>& up = sums[other_end(edge, node)];
    for (std::size_t c = 0; c < up.size(); ++c) {
      double least = kInfinity;
      for (std::size_t d = 0; d < sums[node].size(); ++d) {
        const auto source = static_cast<int>(ends.source == node ? d : c);
        const auto target = static_cast<int>(ends.source == node ? c : d);
        const double across = least_of(ends.table->choices(source, target));
        least = std::min(least, sums[node][d] + across);
      }
      up[c] += least;
    }
  }

  const Problem& problem_;
  double Choice::*cost_;
  std::vector<std::vector<std::size_t>> near_;
};

void expect_ends_of_trees(const Problem& problem, const SearchResult& result) {
  if (result.points().empty() || !result.exact()) return;
  if (const auto least = TreeOracle(problem, &Choice::memory).least()) {
    EXPECT_TRUE(is_close(result.points().front().memory, *least));
  }
  if (const auto least = TreeOracle(problem, &Choice::time).least()) {
    EXPECT_TRUE(is_close(result.points().back().time, *least));
  }
}

void check_any_problem(Dice& dice) {
  const Drawn drawn = any_problem(dice);
  SCOPED_TRACE(drawn.name);
  const SearchOptions options = any_options(dice);
  try {
    const SearchResult result = search(drawn.problem, options);
    expect_exists(drawn.problem, result, options.memory_limit);
    if (std::isinf(options.memory_limit)) {
      EXPECT_FALSE(result.points().empty());
      expect_ends_of_trees(drawn.problem, result);
    }
  } catch (const UserError& error) {
    EXPECT_FALSE(std::string(error.what()).empty());
  }
}

// Small enough for brute force, with any costs.
void check_small_problem(Dice& dice) {
  TableKind kind = any_kind(dice);
  kind.max_choices = std::min(kind.max_choices, 3);
  std::vector<Shape> shapes = all_shapes(dice);
  const Shape& shape =
      shapes[dice.roll(0, static_cast<int>(shapes.size()) - 1)];
  SCOPED_TRACE("small " + shape.name);
  Problem problem;
  for (int i = 0; i < shape.num_nodes; ++i) {
    problem.nodes.push_back(any_node(dice, kind, dice.roll(1, 3)));
  }
  for (const auto& [a, b] : shape.pairs) {
    problem.edges.push_back(
        {a, b,
         any_edge(dice, kind, problem.nodes[a]->num_configs(),
                  problem.nodes[b]->num_configs())});
  }
  const std::vector<Cost> expected = brute_force(problem);
  SearchOptions options = single_thread();
  options.epsilon = dice.chance(50) ? 0 : 0.05;
  options.many_cells = dice.chance(50) ? 1 : 100000;
  if (expected.empty()) {
    EXPECT_THROW(search(problem, options), UserError);
    return;
  }
  const SearchResult result = search(problem, options);
  expect_exists(problem, result, kInfinity);
  const double epsilon = options.epsilon + kRounding;
  expect_covers(costs(result), expected, epsilon);
}

TEST(AnySize, SearchesEndWithStrategiesThatExist) {
  const auto count = number_from_environment("TENSOROPT_FUZZ_COUNT", 60);
  const auto seed = number_from_environment("TENSOROPT_FUZZ_SEED", 1);
  for (std::uint64_t i = seed; i < seed + count; ++i) {
    SCOPED_TRACE("TENSOROPT_FUZZ_SEED=" + std::to_string(i));
    Dice dice(i);
    dice.chance(30) ? check_small_problem(dice) : check_any_problem(dice);
    if (::testing::Test::HasFailure()) return;
  }
}

// --- Single cases -----------------------------------------------------------

EdgePtr free_edge(int sources, int targets) {
  EdgeTable::Builder builder(sources, targets);
  for (int s = 0; s < sources; ++s) {
    for (int t = 0; t < targets; ++t) builder.add(s, t, {});
  }
  return std::move(builder).build();
}

NodePtr free_node(int num_configs) {
  return std::make_shared<NodeTable>(
      std::vector<std::vector<Choice>>(num_configs, {Choice{}}));
}

// The number of cells of what is joined is no double.
TEST(AnySize, HubsOfMoreCellsThanNumbersHoldAreEliminated) {
  constexpr int kConfigs = 200;
  constexpr int kNeighbours = 150;
  Problem problem{{free_node(2)}, {}};
  const NodePtr node = free_node(kConfigs);
  const EdgePtr edge = free_edge(2, kConfigs);
  for (int n = 1; n <= kNeighbours; ++n) {
    problem.nodes.push_back(node);
    problem.edges.push_back({0, n, edge});
  }
  const Domains domains(problem, {});
  ExpressionPool pool(domains);
  FactorGraph graph(problem, pool);
  EXPECT_TRUE(std::isfinite(graph.work(0)));
  graph.eliminate(0);
  EXPECT_EQ(graph.neighbours(1).size(), kNeighbours - 1u);
}

// Two values that every layer uses, as the angles of rotary positions are.
TEST(AnySize, DeepModelsWithHubsAreSearched) {
  constexpr int kLayers = 200;
  constexpr int kConfigs = 20;
  Problem problem{{free_node(kConfigs), free_node(kConfigs)}, {}};
  std::vector<std::vector<Choice>> choices;
  for (int c = 0; c < kConfigs; ++c) {
    choices.push_back({Choice{.memory = 1.0 * c, .time = 19.0 - c}});
  }
  const NodePtr layer = std::make_shared<NodeTable>(std::move(choices));
  const EdgePtr edge = free_edge(kConfigs, kConfigs);
  for (int i = 0; i < kLayers; ++i) {
    const int n = 2 + i;
    problem.nodes.push_back(layer);
    problem.edges.push_back({0, n, edge});
    problem.edges.push_back({1, n, edge});
    if (i > 0) problem.edges.push_back({n - 1, n, edge});
  }
  SearchOptions options = single_thread();
  options.epsilon = 0.1;
  const SearchResult result = search(problem, options);
  EXPECT_EQ(result.points().front(), (Point{0, 19.0 * kLayers}));
  EXPECT_EQ(result.points().back(), (Point{19.0 * kLayers, 0}));
}

TEST(AnySize, SchedulesBeyondAllMachinesAreGivenUp) {
  constexpr int kNodes = 14;
  Problem problem;
  const NodePtr node = free_node(200);
  const EdgePtr edge = free_edge(200, 200);
  for (int n = 0; n < kNodes; ++n) {
    problem.nodes.push_back(node);
    for (int m = 0; m < n; ++m) problem.edges.push_back({m, n, edge});
  }
  const Domains domains(problem, {});
  ExpressionPool pool(domains);
  const Schedule schedule = make_schedule(problem, {}, pool);
  EXPECT_LT(schedule.root, 0);
  EXPECT_GT(schedule.num_left, 0);
  const SearchResult result = search(problem, single_thread());
  EXPECT_FALSE(result.exact());
  EXPECT_EQ(result.points().front(), (Point{0, 0}));
}

TEST(AnySize, CostsThatCannotBeAddedUpAreRefused) {
  for (const double cost : {kInfinity, -1.0, std::nan(""), 1e301}) {
    const Problem problem{{std::make_shared<NodeTable>(
                              std::vector<std::vector<Choice>>{{{cost, 1}}})},
                          {}};
    EXPECT_THROW(search(problem, single_thread()), UserError) << cost;
  }
}

}  // namespace
}  // namespace tensoropt::testing
