// Randomized comparison of whole searches with brute force.

#include <gtest/gtest.h>

#include "common/check.h"
#include "search/brute_force.h"
#include "search/checks.h"
#include "search/engine.h"
#include "search/random_problem.h"

namespace tensoropt {
namespace {

using namespace tensoropt::testing;  // NOLINT: the helpers of these tests

SearchOptions single_thread() {
  SearchOptions options;
  options.num_threads = 1;
  return options;
}

void expect_equals_brute_force(const Problem& problem,
                               const SearchOptions& options) {
  const std::vector<Cost> expected = brute_force(problem);
  if (expected.empty()) {
    EXPECT_THROW(search(problem, options), UserError);
    return;
  }
  const SearchResult result = search(problem, options);
  EXPECT_EQ(costs(result), expected);
  EXPECT_TRUE(result.exact());
  EXPECT_EQ(result.epsilon(), 0);
  EXPECT_EQ(result.min_memory(), expected.front().memory);
  expect_unrolls_exactly(problem, result);
}

TEST(RandomSearch, ExactFrontierEqualsBruteForceOnAllShapes) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Dice dice(seed);
    for (const Shape& shape : all_shapes(dice)) {
      SCOPED_TRACE(shape.name + ", seed " + std::to_string(seed));
      const Problem problem =
          random_problem(dice, {}, shape.num_nodes, shape.pairs);
      expect_equals_brute_force(problem, single_thread());
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace tensoropt
