#include "rules/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "common/check.h"

namespace tensoropt {
namespace {

using Choices = std::vector<int>;

// A rule as far as enumeration looks at it.
Rule rule_of_sizes(const std::vector<std::int64_t>& sizes, int num_sets) {
  Rule rule;
  for (const std::int64_t size : sizes) {
    rule.factors.push_back({str_format("f{}", rule.factors.size()), size});
  }
  for (int set = 0; set < num_sets; ++set) rule.linear_sets.push_back({set});
  return rule;
}

Rule random_rule(std::mt19937& random) {
  constexpr std::int64_t kSizes[] = {1, 2, 3, 4, 6, 12, 24};
  std::vector<std::int64_t> sizes;
  for (auto count = random() % 4; count > 0; --count) {
    sizes.push_back(kSizes[random() % std::size(kSizes)]);
  }
  Rule rule = rule_of_sizes(sizes, static_cast<int>(random() % 3));
  for (Factor& factor : rule.factors) factor.uneven = random() % 2 == 0;
  return rule;
}

// Half of the rules with two factors get one that splits both at once.
Rule random_rule_with_joint(std::mt19937& random) {
  Rule rule = random_rule(random);
  if (rule.factors.size() < 2 || random() % 2 == 0) return rule;
  Factor joint{"joint", std::gcd(rule.factors[0].size, rule.factors[1].size)};
  joint.joint = {0, 1};
  joint.uneven = false;
  rule.factors.push_back(joint);
  return rule;
}

Mesh random_mesh(std::mt19937& random) {
  std::vector<MeshAxis> axes;
  int level = 0;
  for (auto count = random() % 5; count > 0; --count) {
    level += static_cast<int>(random() % 2);
    axes.push_back({2 + static_cast<int>(random() % 2), level});
  }
  // Axes of one level ascend, as base_mesh makes them.
  std::sort(axes.begin(), axes.end(), [](MeshAxis a, MeshAxis b) {
    return std::pair(a.level, a.size) < std::pair(b.level, b.size);
  });
  return Mesh(std::move(axes));
}

// Factors, then linear sets, then none, as numbers.
Choices numbers(const OpConfig& config, const Rule& rule) {
  const int factors = static_cast<int>(rule.factors.size());
  const int sets = static_cast<int>(rule.linear_sets.size());
  Choices choices;
  for (const AxisUse use : config) {
    choices.push_back(use.is_factor()   ? use.factor_index()
                      : use.is_linear() ? factors + use.linear_set()
                                        : factors + sets);
  }
  return choices;
}

std::vector<Choices> numbers_of(const Rule& rule, const Mesh& mesh,
                                const ConfigLimits& limits) {
  std::vector<Choices> all;
  for (const OpConfig& config : enumerate_configs(rule, mesh, limits)) {
    all.push_back(numbers(config, rule));
  }
  return all;
}

// By definition: every choice for every axis, kept if all factors divide, or
// have an entry in every part where these may differ: not where a factor is cut
// by a joint one as well.
std::set<Choices> brute_force(const Rule& rule, const Mesh& mesh) {
  const int factors = static_cast<int>(rule.factors.size());
  const int count = factors + static_cast<int>(rule.linear_sets.size()) + 1;
  std::set<Choices> all{{}};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::set<Choices> longer;
    for (Choices choices : all) {
      choices.push_back(0);
      for (choices.back() = 0; choices.back() < count; ++choices.back()) {
        longer.insert(choices);
      }
    }
    all = std::move(longer);
  }
  std::erase_if(all, [&](const Choices& choices) {
    std::map<int, AxisSet> cuts;
    std::set<int> even;
    const auto cut = [&](int choice, int axis) {
      cuts[choice] |= AxisSet{1} << axis;
    };
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      cut(choices[axis], axis);
      if (choices[axis] >= factors) continue;
      for (const int factor : rule.factors[choices[axis]].joint) {
        cut(factor, axis);
        even.insert(factor);
      }
    }
    return std::any_of(cuts.begin(), cuts.end(), [&](const auto& entry) {
      if (entry.first >= factors) return false;
      const Factor& factor = rule.factors[entry.first];
      const auto sizes = part_sizes(factor.size, entry.second, mesh);
      const auto [least, most] =
          std::minmax_element(sizes.begin(), sizes.end());
      const bool differ = factor.uneven && !even.contains(entry.first);
      return *least == 0 || (*least != *most && !differ);
    });
  });
  return all;
}

// Every part that a factor is cut into has entries.
TEST(EnumerateConfigs, FactorsThatMayBeUnevenAreCutIntoPartsWithEntries) {
  const Mesh mesh({{2, 0}, {2, 0}});
  const auto cuts = [&](std::int64_t size, bool uneven) {
    Rule rule = rule_of_sizes({size}, 0);
    rule.factors[0].uneven = uneven;
    std::set<std::string> texts;
    for (const OpConfig& config : enumerate_configs(rule, mesh, {})) {
      texts.insert(to_string(rule, config));
    }
    return texts;
  };
  const std::set<std::string> none{"-,-"}, one{"-,-", "f0,-"},
      both{"-,-", "f0,-", "f0,f0"};
  EXPECT_EQ(cuts(7, false), none);
  EXPECT_EQ(cuts(7, true), both);
  EXPECT_EQ(cuts(6, false), one);
  EXPECT_EQ(cuts(6, true), both);  // 3, 3; 2, 1, 2, 1
  EXPECT_EQ(cuts(3, true), one);   // 2, 1; 1, 1, 1, 0
  EXPECT_EQ(cuts(1, true), none);
  Rule rule = rule_of_sizes({7}, 0);
  rule.factors[0].uneven = false;
  UnevenSplits left_out;
  enumerate_configs(rule, mesh, {}, &left_out);
  EXPECT_EQ(left_out, (UnevenSplits{{0, 2}}));
}

TEST(EnumerateLayouts, UnevenDimsAreCutIntoPartsWithEntries) {
  const Mesh mesh({{2, 0}, {2, 0}});
  std::set<std::string> listed;
  for (const Layout& layout : enumerate_layouts({7, 3}, mesh, {}, 0b01)) {
    listed.insert(layout.to_string());
  }
  EXPECT_EQ(listed, (std::set<std::string>{"R,R", "S0,R", "S0,S0"}));
}

// The member of the class under permutations of alike axes that has its
// choices in ascending order.
Choices canonical(const Choices& choices, const Mesh& mesh) {
  std::map<std::pair<int, int>, Choices> by_kind;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    by_kind[{mesh.axes()[axis].level, mesh.size(axis)}].push_back(
        choices[axis]);
  }
  Choices result;
  for (auto& [kind, group] : by_kind) {
    std::sort(group.begin(), group.end());
    result.insert(result.end(), group.begin(), group.end());
  }
  return result;
}

TEST(EnumerateConfigs, FullSpaceIsEveryAssignmentThatFits) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Rule rule = random_rule_with_joint(random);
    const Mesh mesh = random_mesh(random);
    const auto listed = numbers_of(rule, mesh, {ConfigSpace::kFull});
    const std::set<Choices> distinct(listed.begin(), listed.end());
    EXPECT_EQ(distinct.size(), listed.size());
    EXPECT_EQ(distinct, brute_force(rule, mesh));
  }
}

TEST(EnumerateConfigs, OrderedSpaceHasOneOfEveryClassOfAlikeAxes) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Rule rule = random_rule_with_joint(random);
    const Mesh mesh = random_mesh(random);
    std::set<Choices> classes;
    for (const Choices& choices : brute_force(rule, mesh)) {
      classes.insert(canonical(choices, mesh));
    }
    const auto listed = numbers_of(rule, mesh, {ConfigSpace::kOrdered});
    EXPECT_EQ(std::set<Choices>(listed.begin(), listed.end()), classes);
    EXPECT_EQ(listed.size(), classes.size());
  }
}

TEST(EnumerateConfigs, RunsAreLimited) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Rule rule = random_rule(random);
    const Mesh mesh = random_mesh(random);
    for (const ConfigSpace space :
         {ConfigSpace::kFull, ConfigSpace::kOrdered}) {
      for (int max_runs = 1; max_runs <= mesh.num_axes(); ++max_runs) {
        std::vector<Choices> expected = numbers_of(rule, mesh, {space});
        std::erase_if(expected, [&](Choices choices) {
          choices.erase(std::unique(choices.begin(), choices.end()),
                        choices.end());
          return static_cast<int>(choices.size()) > max_runs;
        });
        EXPECT_EQ(numbers_of(rule, mesh, {space, max_runs}), expected);
      }
    }
  }
}

TEST(EnumerateConfigs, CountsByHand) {
  // Choices a, b, none on two alike axes: 9 in full, 6 without order.
  const Rule rule = rule_of_sizes({4, 4}, 0);
  const Mesh alike({{2, 0}, {2, 0}});
  EXPECT_EQ(enumerate_configs(rule, alike, {ConfigSpace::kFull}).size(), 9);
  EXPECT_EQ(enumerate_configs(rule, alike, {ConfigSpace::kOrdered}).size(), 6);
  const Mesh levels({{2, 0}, {2, 1}});
  EXPECT_EQ(enumerate_configs(rule, levels, {ConfigSpace::kOrdered}).size(), 9);
  // One device: nothing to choose.
  EXPECT_EQ(enumerate_configs(rule, Mesh({}), {ConfigSpace::kFull}).size(), 1);
}

TEST(EnumerateConfigs, EvenFactorsThatDoNotDivideAreNotSplit) {
  const Mesh mesh({{2, 0}});
  Rule rule = rule_of_sizes({50257, 8}, 0);
  rule.factors[0].uneven = false;
  const auto configs = enumerate_configs(rule, mesh, {ConfigSpace::kFull});
  ASSERT_EQ(configs.size(), 2);
  EXPECT_EQ(to_string(rule, configs[0]), "f1");
  EXPECT_EQ(to_string(rule, configs[1]), "-");
}

TEST(ToString, NamesFactorsSetsAndNone) {
  const Rule rule = rule_of_sizes({4}, 2);
  EXPECT_EQ(to_string(rule, {AxisUse::factor(0), AxisUse::linear(1),
                             AxisUse::none(), AxisUse::linear(0)}),
            "f0,+1,-,+0");
}

TEST(FactorAxes, AreTheAxesThatSplitEachFactor) {
  const Rule rule = rule_of_sizes({4, 4, 4}, 1);
  const OpConfig config{AxisUse::factor(2), AxisUse::linear(0),
                        AxisUse::factor(0), AxisUse::factor(2)};
  EXPECT_EQ(factor_axes(rule, config),
            (std::vector<AxisSet>{0b100, 0, 0b1001}));
}

TEST(EnumerateLayouts, AreTheConfigsOfARuleWithAFactorPerDim) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Rule rule = random_rule(random);
    rule.linear_sets.clear();
    const Mesh mesh = random_mesh(random);
    Shape shape;
    DimSet uneven = 0;
    for (const Factor& factor : rule.factors) {
      if (factor.uneven) uneven |= DimSet{1} << shape.size();
      shape.push_back(factor.size);
    }
    for (const ConfigSpace space :
         {ConfigSpace::kFull, ConfigSpace::kOrdered}) {
      std::set<std::string> expected;
      for (const Choices& choices : numbers_of(rule, mesh, {space})) {
        Layout layout = Layout::replicated(mesh.num_axes());
        for (int axis = 0; axis < mesh.num_axes(); ++axis) {
          if (choices[axis] == static_cast<int>(shape.size())) continue;
          layout.set(axis, Placement::shard(choices[axis]));
        }
        EXPECT_EQ(uneven_dims(shape, layout, mesh) & ~uneven, 0);
        expected.insert(layout.to_string());
      }
      std::set<std::string> listed;
      for (const Layout& layout :
           enumerate_layouts(shape, mesh, {space}, uneven)) {
        listed.insert(layout.to_string());
      }
      EXPECT_EQ(listed, expected);
    }
  }
}

}  // namespace
}  // namespace tensoropt
