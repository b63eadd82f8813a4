#include "space/strategy_names.h"

#include <array>
#include <optional>
#include <set>
#include <utility>

#include "common/check.h"

namespace tensoropt {

namespace {

constexpr std::array kReuses = {Reuse::kNone, Reuse::kBefore, Reuse::kAfter,
                                Reuse::kBoth};

std::string in_words(const EdgeChoice& choice) {
  std::vector<std::string_view> words;
  if (choice.reuse != Reuse::kNone) words.push_back(to_string(choice.reuse));
  if (choice.held) words.push_back("held");
  if (choice.summed) words.push_back("summed");
  return str_join(words, ", ");
}

// By what it is called in words. There are 16 of them.
std::optional<EdgeChoice> choice_called(std::string_view words) {
  for (const Reuse reuse : kReuses) {
    for (const bool held : {false, true}) {
      for (const bool summed : {false, true}) {
        const EdgeChoice choice{reuse, held, summed};
        if (in_words(choice) == words) return choice;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

StrategyNames::StrategyNames(const StrategySpace& space) : space_(space) {
  const auto& nodes = space.nodes();
  std::set<std::string_view> known;
  for (const SpaceNode& node : nodes) {
    TO_ASSERT(known.insert(node.name).second, "two nodes are named '{}'",
              node.name);
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
  for (const SpaceEdge& edge : space.edges()) {
    edges_.push_back(str_format("{} -> {}[{}]", nodes[edge.source].name,
                                nodes[edge.target].name, edge.target_port));
  }
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    const bool is_new =
        edge_numbers_.emplace(edges_[i], static_cast<int>(i)).second;
    TO_ASSERT(is_new, "two edges are named '{}'", edges_[i]);
  }
}

NamedChoices StrategyNames::of(const Strategy& strategy) const {
  space_.check(strategy);
  const auto& nodes = space_.nodes();
  NamedChoices choices;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const SpaceConfig& config = nodes[i].configs->configs[strategy.config[i]];
    choices.configs[nodes[i].name] = config.label;
  }
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    std::string words = in_words(EdgeChoice::of(strategy.edge_tag[i]));
    if (!words.empty()) choices.edges[edges_[i]] = std::move(words);
  }
  return choices;
}

void StrategyNames::check_edges(const Strategy& strategy) const {
  space_.check(strategy);
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    const SpaceEdge& edge = space_.edges()[i];
    const auto choice = EdgeChoice::of(strategy.edge_tag[i]);
    TO_CHECK(space_.allows(edge, strategy.config[edge.source],
                           strategy.config[edge.target], choice),
             "edge '{}' cannot be crossed with '{}' between the configs of its "
             "ends",
             edges_[i], in_words(choice));
  }
}

int StrategyNames::config_of(const SpaceNode& node,
                             const NamedChoices& choices) const {
  const auto label = choices.configs.find(node.name);
  TO_CHECK(label != choices.configs.end(), "no config is given for '{}'",
           node.name);
  const Numbers& numbers = config_numbers_.at(node.configs);
  const auto found = numbers.find(label->second);
  TO_CHECK(found != numbers.end(), "'{}' has no config '{}'", node.name,
           label->second);
  return found->second;
}

void StrategyNames::check_known(const NamedChoices& choices) const {
  std::set<std::string_view> known;
  for (const SpaceNode& node : space_.nodes()) known.insert(node.name);
  for (const auto& [name, label] : choices.configs) {
    TO_CHECK(known.contains(name),
             "there is no operator, value or parameter '{}'", name);
  }
}

Strategy StrategyNames::strategy(const NamedChoices& choices) const {
  const auto& nodes = space_.nodes();
  Strategy strategy;
  for (const SpaceNode& node : nodes) {
    strategy.config.push_back(config_of(node, choices));
  }
  if (choices.configs.size() > nodes.size()) check_known(choices);
  strategy.edge_tag.assign(edges_.size(), 0);
  for (const auto& [name, words] : choices.edges) {
    const auto found = edge_numbers_.find(name);
    TO_CHECK(found != edge_numbers_.end(), "there is no edge '{}'", name);
    const std::optional<EdgeChoice> choice = choice_called(words);
    TO_CHECK(choice.has_value(), "edge '{}' has no choice '{}'", name, words);
    strategy.edge_tag[found->second] = choice->tag();
  }
  return strategy;
}

}  // namespace tensoropt
