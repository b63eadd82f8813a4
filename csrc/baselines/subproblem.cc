#include "baselines/subproblem.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"

namespace tensoropt {

namespace {

std::vector<int> configs_in(const ConfigMask& mask) {
  std::vector<int> configs;
  for (std::size_t c = 0; c < mask.size(); ++c) {
    if (mask[c]) configs.push_back(static_cast<int>(c));
  }
  return configs;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Point least(std::span<const Choice> choices, Point point) {
  for (const Choice& choice : choices) {
    point.memory = std::min(point.memory, choice.memory);
    point.time = std::min(point.time, choice.time);
  }
  return point;
}

}  // namespace

Strategy Subproblem::in_whole(Strategy strategy) const {
  for (std::size_t n = 0; n < configs.size(); ++n) {
    strategy.config[n] = configs[n][strategy.config[n]];
  }
  return strategy;
}

Subproblem SubproblemMaker::make(const std::vector<ConfigMask>& allowed) {
  TO_ASSERT(allowed.size() == whole_.nodes.size(), "{} masks for {} nodes",
            allowed.size(), whole_.nodes.size());
  const std::lock_guard lock(mutex_);
  Subproblem part;
  for (std::size_t n = 0; n < allowed.size(); ++n) {
    part.problem.nodes.push_back(node_table(*whole_.nodes[n], allowed[n]));
    part.configs.push_back(configs_in(allowed[n]));
  }
  for (const Problem::Edge& edge : whole_.edges) {
    part.problem.edges.push_back(
        {edge.source, edge.target,
         edge_table(*edge.table, allowed[edge.source], allowed[edge.target])});
  }
  return part;
}

std::shared_ptr<const NodeTable> SubproblemMaker::node_table(
    const NodeTable& table, const ConfigMask& mask) {
  auto& slot = node_tables_[{&table, mask}];
  if (slot == nullptr) {
    std::vector<std::vector<Choice>> choices;
    for (const int config : configs_in(mask)) {
      const auto kept = table.choices(config);
      choices.emplace_back(kept.begin(), kept.end());
    }
    slot = std::make_shared<NodeTable>(std::move(choices));
  }
  return slot;
}

std::shared_ptr<const EdgeTable> SubproblemMaker::edge_table(
    const EdgeTable& table, const ConfigMask& sources,
    const ConfigMask& targets) {
  auto& slot = edge_tables_[{&table, sources, targets}];
  if (slot != nullptr) return slot;
  const std::vector<int> from = configs_in(sources);
  const std::vector<int> to = configs_in(targets);
  EdgeTable::Builder builder(static_cast<int>(from.size()),
                             static_cast<int>(to.size()));
  for (std::size_t s = 0; s < from.size(); ++s) {
    for (std::size_t t = 0; t < to.size(); ++t) {
      for (const Choice& choice : table.choices(from[s], to[t])) {
        builder.add(static_cast<int>(s), static_cast<int>(t), choice);
      }
    }
  }
  slot = std::move(builder).build();
  return slot;
}

Point lower_bound(const Problem& problem) {
  Point sum;
  std::map<const void*, Point> known;
  const auto add = [&](const void* table, auto compute) {
    const auto [entry, added] = known.try_emplace(table);
    if (added) entry->second = compute();
    sum.memory += entry->second.memory;
    sum.time += entry->second.time;
  };
  for (const auto& node : problem.nodes) {
    add(node.get(), [&] {
      Point point{kInfinity, kInfinity};
      for (int c = 0; c < node->num_configs(); ++c) {
        point = least(node->choices(c), point);
      }
      return point;
    });
  }
  for (const Problem::Edge& edge : problem.edges) {
    add(edge.table.get(), [&] {
      return least(edge.table->all_choices(), {kInfinity, kInfinity});
    });
  }
  return sum;
}

}  // namespace tensoropt
