// The part of a problem that is left when every node may take some configs
// only, made small: forbidden configs are not in its tables.
//
//   SubproblemMaker maker(problem);
//   Subproblem part = maker.make(allowed);      // a mask per node
//   SearchResult result = search(part.problem, options);
//   Strategy strategy = part.in_whole(result.unroll(0));
//
// Tables of equal tables and masks are shared, also between subproblems.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "problem/frontier.h"
#include "problem/propagation.h"
#include "problem/strategy.h"

namespace tensoropt {

struct Subproblem {
  Problem problem;
  // By node: the number in the whole problem of each config.
  std::vector<std::vector<int>> configs;

  // The same strategy with the config numbers of the whole problem.
  Strategy in_whole(Strategy strategy) const;
};

class SubproblemMaker {
 public:
  // Keeps a reference to the problem.
  explicit SubproblemMaker(const Problem& whole) : whole_(whole) {}

  // Every mask must allow a config. Thread-safe. O(nodes + edges) look-ups and
  // the choices of tables not made before.
  Subproblem make(const std::vector<ConfigMask>& allowed);

 private:
  using NodeKey = std::pair<const NodeTable*, ConfigMask>;
  using EdgeKey = std::tuple<const EdgeTable*, ConfigMask, ConfigMask>;

  std::shared_ptr<const NodeTable> node_table(const NodeTable& table,
                                              const ConfigMask& mask);
  std::shared_ptr<const EdgeTable> edge_table(const EdgeTable& table,
                                              const ConfigMask& sources,
                                              const ConfigMask& targets);

  const Problem& whole_;
  std::mutex mutex_;
  std::map<NodeKey, std::shared_ptr<const NodeTable>> node_tables_;
  std::map<EdgeKey, std::shared_ptr<const EdgeTable>> edge_tables_;
};

// The ideal point of a problem: no strategy has less memory or less time than
// the sums of the least of all tables. O(choices).
Point lower_bound(const Problem& problem);

}  // namespace tensoropt
