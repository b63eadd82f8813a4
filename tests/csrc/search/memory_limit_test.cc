// What is promised beside memory limits, against brute force: the fastest point
// within a limit takes at most 1 + epsilon times the least time of any strategy
// within it.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "problem/brute_force.h"
#include "problem/random_problem.h"
#include "search/checks.h"
#include "search/frontier_tracking.h"

namespace tensoropt::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Infinite if nothing fits.
double least_time_within(double limit, const std::vector<Cost>& costs) {
  double least = kInfinity;
  for (const Cost& cost : costs) {
    if (cost.memory <= limit) least = std::min(least, cost.time);
  }
  return least;
}

void expect_fast_within(double limit, const SearchResult& result,
                        const std::vector<Cost>& all, double epsilon) {
  SCOPED_TRACE("limit " + std::to_string(limit) + ", epsilon " +
               std::to_string(epsilon));
  EXPECT_LE(result.epsilon(), epsilon * (1 + 1e-12));
  EXPECT_LE(least_time_within(limit, costs(result)),
            (1 + epsilon) * (1 + 1e-12) * least_time_within(limit, all));
}

// At the memory of a strategy, next to it, or beside it by up to epsilon.
double draw_limit(Dice& dice, const std::vector<Cost>& all, double epsilon) {
  const int last = static_cast<int>(all.size()) - 1;
  const double memory = all[dice.roll(0, last)].memory;
  switch (dice.roll(0, 3)) {
    case 0:
      return memory;
    case 1:
      return std::max(0.0, memory - 1);
    case 2:
      return memory * (1 + epsilon * dice.roll(0, 100) / 100);
    default:
      return memory / (1 + epsilon * dice.roll(0, 100) / 100);
  }
}

SearchOptions draw_options(Dice& dice) {
  SearchOptions options = dice.chance(50) ? staged() : single_thread();
  options.use_bounds = dice.chance(75);
  if (dice.chance(25)) options.algorithm = Algorithm::kElimination;
  return options;
}

template <typename Check>
void for_limits(std::uint64_t first_seed, const RandomTables& how,
                Check&& check) {
  for_random_problems(
      first_seed, 12, how, [&](const Problem& problem, Dice& dice) {
        const std::vector<Cost> all = brute_force(problem);
        for (const double epsilon : {0.001, 0.01, 0.1, 0.5}) {
          for (int draw = 0; draw < 3; ++draw) {
            SearchOptions options = draw_options(dice);
            options.epsilon = epsilon;
            check(problem, options, all, draw_limit(dice, all, epsilon));
          }
        }
      });
}

// Frontiers of hundreds of points.
const RandomTables kWide{
    .max_configs = 3, .max_choices = 4, .largest_cost = 20000};
// Crowds of points that thinning takes for one, far from the next crowd.
const RandomTables kCrowds{
    .max_configs = 3, .max_choices = 4, .largest_cost = 6, .cost_step = 1000};

// Of (100, 10) and (100.05, 9.99), sums of two nodes, one stands for the other
// within epsilon, but only the first leaves room for what the third node needs.
TEST(MemoryLimit, AStrategyThatJustFitsIsNotLostToALargerOne) {
  const auto node = [](std::vector<Choice> choices) {
    return std::make_shared<NodeTable>(
        std::vector<std::vector<Choice>>{std::move(choices)});
  };
  std::vector<std::shared_ptr<const NodeTable>> nodes{
      node({{0, 900, 0}, {100, 9.99, 1}, {900, 1, 2}}),
      node({{0, 0.01, 0}, {0.05, 0, 1}}), node({{49, 900, 0}, {50, 5, 1}})};
  std::sort(nodes.begin(), nodes.end());
  do {
    SearchOptions options = single_thread();
    options.epsilon = 0.01;
    options.memory_limit = 150;
    options.use_bounds = false;
    const Problem problem{nodes, {}};
    expect_fast_within(150, search(problem, options), brute_force(problem),
                       options.epsilon);
  } while (std::next_permutation(nodes.begin(), nodes.end()));
}

TEST(MemoryLimit, SearchUpToALimitKeepsTheBoundAtIt) {
  const auto check = [](const Problem& problem, SearchOptions options,
                        const std::vector<Cost>& all, double limit) {
    options.memory_limit = limit;
    const SearchResult result = search(problem, options);
    expect_fast_within(limit, result, all, options.epsilon);
    for (const Point& point : result.points()) EXPECT_LE(point.memory, limit);
    expect_unrolls_exactly(problem, result);
  };
  for_limits(20000, kWide, check);
  for_limits(21000, kCrowds, check);
}

TEST(MemoryLimit, WholeFrontierKeepsTheBoundWhereItIsPickedFrom) {
  const auto check = [](const Problem& problem, SearchOptions options,
                        const std::vector<Cost>& all, double limit) {
    options.pick_limits = {limit};
    const SearchResult result = search(problem, options);
    expect_fast_within(limit, result, all, options.epsilon);
    expect_covers(costs(result), all, options.epsilon);
    expect_unrolls_exactly(problem, result);
  };
  for_limits(22000, kWide, check);
  for_limits(23000, kCrowds, check);
}

// Alone, and beside what is known of another problem: a strategy of it within
// the limit may be as fast.
TEST(MemoryLimit, WhatIsPickedKeepsTheBoundWhereNothingElseIsAskedFor) {
  Dice others_dice(29000);
  const auto check = [&](const Problem& problem, SearchOptions options,
                         const std::vector<Cost>& all, double limit) {
    options.only_picks = true;
    const double second = draw_limit(others_dice, all, options.epsilon);
    options.pick_limits = {limit, second};
    if (others_dice.chance(30)) options.memory_limit = std::max(limit, second);
    const SearchResult alone = search(problem, options);
    for (const double one : {limit, second}) {
      expect_fast_within(one, alone, all, options.epsilon);
    }
    EXPECT_EQ(alone.min_memory(), all.front().memory);
    EXPECT_EQ(alone.min_time(), all.back().time);
    expect_unrolls_exactly(problem, alone);

    const Cost known =
        all[others_dice.roll(0, static_cast<int>(all.size()) - 1)];
    options.others = {{known.memory, known.time}};
    const SearchResult beside = search(problem, options);
    for (const double one : {limit, second}) {
      const double theirs = known.memory <= one ? known.time : kInfinity;
      EXPECT_LE(
          std::min(theirs, least_time_within(one, costs(beside))),
          (1 + options.epsilon) * (1 + 1e-12) * least_time_within(one, all));
    }
    expect_unrolls_exactly(problem, beside);
  };
  for_limits(24000, kWide, check);
  for_limits(25000, kCrowds, check);
}

TEST(MemoryLimit, OnlyPicksNeedALimit) {
  SearchOptions options = single_thread();
  options.only_picks = true;
  for_random_problems(26000, 1, {}, [&](const Problem& problem, Dice&) {
    EXPECT_THROW(search(problem, options), UserError);
  });
}

}  // namespace
}  // namespace tensoropt::testing
