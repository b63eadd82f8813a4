#include "problem/problem.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "common/check.h"

namespace tensoropt {

namespace {

// Sums of a hundred million such costs are finite.
constexpr double kLargestCost = 1e300;

bool is_cost(double value) { return value >= 0 && value <= kLargestCost; }

void validate_costs(std::span<const Choice> choices, const char* kind,
                    std::size_t index) {
  for (const Choice& choice : choices) {
    TO_CHECK(is_cost(choice.memory) && is_cost(choice.time),
             "{} {}: a choice costs {} bytes and {} s; costs must be finite "
             "and not negative, and at most {}",
             kind, index, choice.memory, choice.time, kLargestCost);
  }
}

void validate_ends(const Problem& problem, std::size_t index) {
  const Problem::Edge& edge = problem.edges[index];
  const int num_nodes = static_cast<int>(problem.nodes.size());
  TO_CHECK(edge.table != nullptr, "edge {} has no table", index);
  for (const Problem::NodeId end : {edge.source, edge.target}) {
    TO_CHECK(0 <= end && end < num_nodes,
             "edge {} joins node {}, but the problem has {} nodes", index, end,
             num_nodes);
  }
  TO_CHECK(edge.source != edge.target,
           "edge {} joins node {} to itself; add its costs to the node", index,
           edge.source);
  const int sources = problem.nodes[edge.source]->num_configs();
  const int targets = problem.nodes[edge.target]->num_configs();
  TO_CHECK(edge.table->num_sources() == sources &&
               edge.table->num_targets() == targets,
           "edge {} (node {} -> node {}) has a table of {} x {} configs, but "
           "its ends have {} and {}",
           index, edge.source, edge.target, edge.table->num_sources(),
           edge.table->num_targets(), sources, targets);
}

}  // namespace

NodeTable::NodeTable(std::vector<std::vector<Choice>> choices_by_config)
    : choices_(std::move(choices_by_config)) {}

std::span<const Choice> NodeTable::choices(int config) const {
  TO_ASSERT(0 <= config && config < num_configs(), "config {} of {}", config,
            num_configs());
  return choices_[config];
}

EdgeTable::Row EdgeTable::row(int source) const {
  TO_ASSERT(0 <= source && source < num_sources_, "source {} of {}", source,
            num_sources_);
  const std::int64_t first = row_first_[source];
  const std::int64_t count = row_first_[source + 1] - first;
  return {std::span(targets_).subspan(first, count),
          std::span(first_choice_).subspan(first, count + 1)};
}

std::span<const Choice> EdgeTable::choices(int source, int target) const {
  const Row cells = row(source);
  const auto found =
      std::lower_bound(cells.targets.begin(), cells.targets.end(), target);
  if (found == cells.targets.end() || *found != target) return {};
  const auto cell = found - cells.targets.begin();
  const std::int64_t first = cells.first_choice[cell];
  return std::span(choices_).subspan(first,
                                     cells.first_choice[cell + 1] - first);
}

EdgeTable::Builder::Builder(int num_sources, int num_targets)
    : num_targets_(num_targets), rows_(num_sources) {}

void EdgeTable::Builder::add(int source, int target, Choice choice) {
  TO_ASSERT(0 <= source && source < static_cast<int>(rows_.size()),
            "source {} of {}", source, rows_.size());
  TO_ASSERT(0 <= target && target < num_targets_, "target {} of {}", target,
            num_targets_);
  rows_[source].push_back({target, choice});
}

std::shared_ptr<const EdgeTable> EdgeTable::Builder::build() && {
  std::shared_ptr<EdgeTable> table(new EdgeTable);
  table->num_sources_ = static_cast<int>(rows_.size());
  table->num_targets_ = num_targets_;
  for (std::vector<Item>& row : rows_) {
    std::stable_sort(row.begin(), row.end(), [](const Item& a, const Item& b) {
      return a.target < b.target;
    });
    table->row_first_.push_back(table->num_cells());
    std::int32_t last_target = -1;
    for (const Item& item : row) {
      if (item.target != last_target) {
        table->targets_.push_back(item.target);
        table->first_choice_.push_back(table->num_choices());
        last_target = item.target;
      }
      table->choices_.push_back(item.choice);
    }
    row = {};
  }
  table->row_first_.push_back(table->num_cells());
  table->first_choice_.push_back(table->num_choices());
  return table;
}

void validate(const Problem& problem) {
  std::set<const void*> seen;
  for (std::size_t n = 0; n < problem.nodes.size(); ++n) {
    const NodeTable* table = problem.nodes[n].get();
    TO_CHECK(table != nullptr, "node {} has no table", n);
    TO_CHECK(table->num_configs() > 0, "node {} has no config", n);
    if (!seen.insert(table).second) continue;
    for (int c = 0; c < table->num_configs(); ++c) {
      validate_costs(table->choices(c), "node", n);
    }
  }
  for (std::size_t e = 0; e < problem.edges.size(); ++e) {
    validate_ends(problem, e);
    const EdgeTable* table = problem.edges[e].table.get();
    if (seen.insert(table).second) {
      validate_costs(table->all_choices(), "edge", e);
    }
  }
}

Problem restrict(const Problem& problem,
                 const std::vector<std::vector<bool>>& allowed) {
  TO_CHECK(allowed.size() == problem.nodes.size(),
           "restrict: {} masks for {} nodes", allowed.size(),
           problem.nodes.size());
  using Key = std::pair<const NodeTable*, std::vector<bool>>;
  std::map<Key, std::shared_ptr<const NodeTable>> made;
  Problem result = problem;
  for (std::size_t n = 0; n < problem.nodes.size(); ++n) {
    const NodeTable& table = *problem.nodes[n];
    TO_CHECK(static_cast<int>(allowed[n].size()) == table.num_configs(),
             "restrict: node {} has {} configs, its mask has {}", n,
             table.num_configs(), allowed[n].size());
    if (std::count(allowed[n].begin(), allowed[n].end(), false) == 0) continue;
    auto& slot = made[{&table, allowed[n]}];
    if (slot == nullptr) {
      std::vector<std::vector<Choice>> choices(table.num_configs());
      for (int c = 0; c < table.num_configs(); ++c) {
        if (!allowed[n][c]) continue;
        const auto kept = table.choices(c);
        choices[c].assign(kept.begin(), kept.end());
      }
      slot = std::make_shared<NodeTable>(std::move(choices));
    }
    result.nodes[n] = slot;
  }
  return result;
}

Problem part_of(const Problem& problem, const std::vector<bool>& nodes) {
  TO_CHECK(nodes.size() == problem.nodes.size(),
           "part_of: a mask of {} for {} nodes", nodes.size(),
           problem.nodes.size());
  Problem part;
  std::vector<int> number(nodes.size(), -1);
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (!nodes[n]) continue;
    number[n] = static_cast<int>(part.nodes.size());
    part.nodes.push_back(problem.nodes[n]);
  }
  for (const Problem::Edge& edge : problem.edges) {
    const int source = number[edge.source];
    const int target = number[edge.target];
    if (source >= 0 && target >= 0) {
      part.edges.push_back({source, target, edge.table});
    }
  }
  return part;
}

}  // namespace tensoropt
