#include "problem/propagation.h"

#include <algorithm>

namespace tensoropt {

namespace {

// Up to so many targets, cells are looked up instead of scanning the rows.
constexpr int kFewTargets = 4;

std::vector<int> configs_in(const ConfigMask& mask) {
  std::vector<int> configs;
  for (std::size_t c = 0; c < mask.size(); ++c) {
    if (mask[c]) configs.push_back(static_cast<int>(c));
  }
  return configs;
}

// Which sources and which targets have a cell between them.
std::pair<ConfigMask, ConfigMask> supported(const EdgeTable& table,
                                            const ConfigMask& sources,
                                            const ConfigMask& targets) {
  std::pair<ConfigMask, ConfigMask> result{ConfigMask(sources.size()),
                                           ConfigMask(targets.size())};
  const std::vector<int> few = configs_in(targets);
  for (const int s : configs_in(sources)) {
    const auto mark = [&](int t) {
      result.first[s] = true;
      result.second[t] = true;
    };
    if (few.size() <= kFewTargets) {
      for (const int t : few) {
        if (!table.choices(s, t).empty()) mark(t);
      }
    } else {
      for (const int t : table.row(s).targets) {
        if (targets[t]) mark(t);
      }
    }
  }
  return result;
}

}  // namespace

Propagation::Propagation(const Problem& problem)
    : problem_(problem),
      edges_of_(problem.nodes.size()),
      waiting_(problem.edges.size()) {
  for (std::size_t e = 0; e < problem.edges.size(); ++e) {
    edges_of_[problem.edges[e].source].emplace_back(e);
    edges_of_[problem.edges[e].target].emplace_back(e);
  }
}

std::vector<ConfigMask> Propagation::all_configs() const {
  std::vector<ConfigMask> masks;
  for (const auto& table : problem_.nodes) {
    ConfigMask mask(table->num_configs());
    for (int c = 0; c < table->num_configs(); ++c) {
      mask[c] = !table->choices(c).empty();
    }
    masks.push_back(std::move(mask));
  }
  return masks;
}

void Propagation::enqueue(Problem::EdgeId edge) {
  if (waiting_[edge]) return;
  waiting_[edge] = true;
  queue_.push_back(edge);
}

Problem::NodeId Propagation::run(std::vector<ConfigMask>& masks) {
  for (std::size_t n = 0; n < masks.size(); ++n) {
    if (std::find(masks[n].begin(), masks[n].end(), true) == masks[n].end()) {
      return Problem::NodeId(n);
    }
  }
  for (std::size_t e = 0; e < problem_.edges.size(); ++e) {
    enqueue(Problem::EdgeId(e));
  }
  return drain(masks, nullptr);
}

Problem::NodeId Propagation::run_from(Problem::NodeId node,
                                      std::vector<ConfigMask>& masks,
                                      std::vector<Change>& changes) {
  for (const Problem::EdgeId e : edges_of_[node]) enqueue(e);
  return drain(masks, &changes);
}

// Repeated layers look up the same masks in the same table: what is found is
// kept for the length of one call.
Problem::NodeId Propagation::drain(std::vector<ConfigMask>& masks,
                                   std::vector<Change>* changes) {
  std::map<Key, std::pair<ConfigMask, ConfigMask>> answers;
  Problem::NodeId empty_node;
  while (!queue_.empty()) {
    const Problem::EdgeId e = queue_.front();
    queue_.pop_front();
    waiting_[e] = false;
    if (!empty_node.is_none()) continue;
    const Problem::Edge& edge = problem_.edges[e];
    const Key key{edge.table.get(), {masks[edge.source], masks[edge.target]}};
    const auto [answer, is_new] = answers.try_emplace(key);
    if (is_new) {
      answer->second =
          supported(*edge.table, masks[edge.source], masks[edge.target]);
    }
    const auto update = [&](Problem::NodeId node, const ConfigMask& mask) {
      if (masks[node] == mask) return;
      if (changes != nullptr) changes->emplace_back(node, masks[node]);
      masks[node] = mask;
      const bool any = std::find(mask.begin(), mask.end(), true) != mask.end();
      if (!any) empty_node = node;
      for (const Problem::EdgeId other : edges_of_[node]) {
        if (other != e) enqueue(other);
      }
    };
    update(edge.source, answer->second.first);
    update(edge.target, answer->second.second);
  }
  return empty_node;
}

}  // namespace tensoropt
