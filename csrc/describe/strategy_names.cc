#include "describe/strategy_names.h"

#include <iterator>
#include <optional>
#include <utility>

#include "common/check.h"
#include "space/space_problem.h"

namespace tensoropt {

namespace {

std::string in_words(const EdgeChoice& choice) {
  std::vector<std::string_view> words;
  if (choice.saved != Saved::kNothing) words.push_back(edge_word(choice.saved));
  if (choice.held) words.push_back("held");
  if (choice.summed) words.push_back("summed");
  return str_join(words, ", ");
}

// By what it is called in words. There are 16 of them.
std::optional<EdgeChoice> choice_called(std::string_view words) {
  for (const Saved saved : kAllSaved) {
    for (const bool held : {false, true}) {
      for (const bool summed : {false, true}) {
        const EdgeChoice choice{saved, held, summed};
        if (in_words(choice) == words) return choice;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

StrategyNames::StrategyNames(const StrategySpace& space, const StepShape& shape)
    : space_(space), shape_(shape) {
  for (const SpaceNode& node : space.nodes()) {
    Numbers& numbers = config_numbers_[node.configs];
    const auto& configs = node.configs->configs;
    if (!numbers.empty()) continue;
    for (std::size_t i = 0; i < configs.size(); ++i) {
      const bool is_new =
          numbers.emplace(configs[i].label, static_cast<int>(i)).second;
      TO_ASSERT(is_new, "two configs of '{}' are labelled '{}'", node.name,
                configs[i].label);
    }
  }
}

std::string StrategyNames::edge_name(SpaceEdgeId number) const {
  const SpaceEdge& edge = space_.edges()[number];
  return str_format("{} -> {}[{}]", space_.nodes()[edge.source].name,
                    space_.nodes()[edge.target].name, edge.target_port);
}

NamedChoices StrategyNames::of(const Strategy& strategy) const {
  space_.check(strategy);
  const auto& nodes = space_.nodes();
  NamedChoices choices;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const SpaceConfig& config = nodes[i].configs->configs[strategy.config[i]];
    choices.configs.push_back(config.label);
  }
  for (std::size_t i = 0; i < strategy.edge_tag.size(); ++i) {
    std::string words = in_words(EdgeChoice::of(strategy.edge_tag[i]));
    if (!words.empty()) choices.edges[SpaceEdgeId(i)] = std::move(words);
  }
  return choices;
}

void StrategyNames::check_edges(const Strategy& strategy) const {
  space_.check(strategy);
  const SpaceProblem costs(space_, shape_);
  for (std::size_t i = 0; i < space_.edges().size(); ++i) {
    const SpaceEdge& edge = space_.edges()[i];
    const auto choice = EdgeChoice::of(strategy.edge_tag[i]);
    TO_CHECK(costs.allows(edge, strategy.config[edge.source],
                          strategy.config[edge.target], choice),
             "edge '{}' cannot be crossed with '{}' between the configs of its "
             "ends",
             edge_name(SpaceEdgeId(i)), in_words(choice));
  }
}

Strategy StrategyNames::strategy(const NamedChoices& choices) const {
  const auto& nodes = space_.nodes();
  TO_CHECK(choices.configs.size() == nodes.size(),
           "{} configs are given for {} operators, parameters and values",
           choices.configs.size(), nodes.size());
  Strategy strategy;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Numbers& numbers = config_numbers_.at(nodes[i].configs);
    const auto found = numbers.find(choices.configs[i]);
    TO_CHECK(found != numbers.end(), "'{}' has no config '{}'", nodes[i].name,
             choices.configs[i]);
    strategy.config.push_back(found->second);
  }
  strategy.edge_tag.assign(space_.edges().size(), 0);
  for (const auto& [number, words] : choices.edges) {
    TO_CHECK(0 <= number && number < std::ssize(strategy.edge_tag),
             "there is no edge {}, only {}", number, strategy.edge_tag.size());
    const std::optional<EdgeChoice> choice = choice_called(words);
    TO_CHECK(choice.has_value(), "edge '{}' has no choice '{}'",
             edge_name(number), words);
    strategy.edge_tag[number] = choice->tag();
  }
  return strategy;
}

}  // namespace tensoropt
