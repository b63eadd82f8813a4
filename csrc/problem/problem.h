// The search problem: a graph whose nodes and edges carry tables of costs.
//
// A strategy picks one config for every node; then one choice (a Pareto
// alternative) for every node in its config, and one for every edge between
// the configs of its ends. Its cost is the sum of all picked choices, in
// memory and in time. The search knows nothing of operators and tensors.
//
//   EdgeTable::Builder edge(2, 2);
//   edge.add(0, 0, {.memory = 0, .time = 0, .tag = 7});
//   edge.add(0, 1, {.memory = 8, .time = 2, .tag = 9});  // 1 -> * forbidden
//   Problem problem{{node, node}, {{0, 1, std::move(edge).build()}}};
//   validate(problem);
//
// Tables are immutable and shared: one pointer used for several nodes or edges
// says that these are structurally identical, and the search then works on
// them once.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/id.h"

namespace tensoropt {

// One way to run a node in a config or to cross an edge between two configs.
// Memory is in bytes and time in seconds, both finite and not negative. `tag`
// is opaque to the search and comes back in the unrolled strategy.
struct Choice {
  double memory = 0;
  double time = 0;
  std::int32_t tag = 0;
};

// The choices of a node, by config. A config without choices is forbidden.
class NodeTable {
 public:
  explicit NodeTable(std::vector<std::vector<Choice>> choices_by_config);

  int num_configs() const { return static_cast<int>(choices_.size()); }
  std::span<const Choice> choices(int config) const;

 private:
  std::vector<std::vector<Choice>> choices_;
};

// The choices of an edge: a sparse matrix, source configs x target configs, of
// small lists. An absent cell forbids the combination.
class EdgeTable {
 public:
  class Builder;

  // The cells of one source config, by ascending target config.
  struct Row {
    std::span<const std::int32_t> targets;
    std::span<const std::int64_t> first_choice;  // targets.size() + 1 entries
  };

  int num_sources() const { return num_sources_; }
  int num_targets() const { return num_targets_; }
  std::int64_t num_cells() const {
    return static_cast<std::int64_t>(targets_.size());
  }
  std::int64_t num_choices() const {
    return static_cast<std::int64_t>(choices_.size());
  }

  Row row(int source) const;
  // All choices, in cell order; `Row::first_choice` indexes it.
  std::span<const Choice> all_choices() const { return choices_; }
  // Empty for a forbidden combination. O(log cells of the row).
  std::span<const Choice> choices(int source, int target) const;

 private:
  EdgeTable() = default;

  int num_sources_ = 0;
  int num_targets_ = 0;
  std::vector<std::int64_t> row_first_;     // source -> first cell
  std::vector<std::int32_t> targets_;       // cell -> target config
  std::vector<std::int64_t> first_choice_;  // cell -> first choice
  std::vector<Choice> choices_;
};

// Collects choices in any order. Rows are independent: threads may add to
// different sources at once.
class EdgeTable::Builder {
 public:
  Builder(int num_sources, int num_targets);

  void add(int source, int target, Choice choice);
  std::shared_ptr<const EdgeTable> build() &&;

 private:
  struct Item {
    std::int32_t target;
    Choice choice;
  };
  int num_targets_;
  std::vector<std::vector<Item>> rows_;
};

struct Problem {
  using NodeId = Id<struct ProblemNodeTag>;
  using EdgeId = Id<struct ProblemEdgeTag>;

  struct Edge {
    Edge(NodeId from, NodeId to, std::shared_ptr<const EdgeTable> costs)
        : source(from), target(to), table(std::move(costs)) {}
    // Plain numbers are positions in `nodes`; Ids of other kinds are refused.
    Edge(std::integral auto from, std::integral auto to,
         std::shared_ptr<const EdgeTable> costs)
        : Edge(NodeId(from), NodeId(to), std::move(costs)) {}

    NodeId source;
    NodeId target;
    std::shared_ptr<const EdgeTable> table;
  };
  std::vector<std::shared_ptr<const NodeTable>> nodes;
  std::vector<Edge> edges;  // several edges may join the same two nodes
};

// Throws UserError, naming the node or edge, unless every table is there and
// of the size its ends ask for, no edge joins a node to itself, and every cost
// is finite, not negative and at most 1e300. O(size of the distinct tables).
void validate(const Problem& problem);

// The same problem where node n may take config c only if allowed[n][c].
// Configs keep their numbers: a forbidden one has no choices. Nodes that share
// a table and have equal masks go on sharing.
Problem restrict(const Problem& problem,
                 const std::vector<std::vector<bool>>& allowed);

// Only these nodes, and the edges between them.
Problem part_of(const Problem& problem, const std::vector<bool>& nodes);

}  // namespace tensoropt
