#include "baselines/baselines.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/workers.h"
#include "problem/frontier.h"

namespace tensoropt {

namespace {

// Maps whose bounds are compared with the points known so far before the next
// ones are searched. Fixed, so that results do not depend on threads.
constexpr int kMapsAtOnce = 16;

// Whether a parameter of this storage is used without communication. A bias
// that is added on one device only (Partial) is stored on all.
bool is_as_used(const Layout& storage, const Layout& use) {
  for (int axis = 0; axis < use.num_axes(); ++axis) {
    const bool replicated =
        use[axis].is_partial() && storage[axis].is_replicate();
    if (storage[axis] != use[axis] && !replicated) return false;
  }
  return true;
}

std::shared_ptr<const EdgeTable> cells_as_used(const StrategySpace& space,
                                               const SpaceEdge& edge,
                                               const EdgeTable& table) {
  EdgeTable::Builder builder(table.num_sources(), table.num_targets());
  for (int source = 0; source < table.num_sources(); ++source) {
    const Layout& from = space.source_port(edge, source).value;
    for (const std::int32_t target : table.row(source).targets) {
      const Layout& to = space.target_port(edge, target).value;
      if (!is_as_used(from, to)) continue;
      for (const Choice& choice : table.choices(source, target)) {
        builder.add(source, target, choice);
      }
    }
  }
  return std::move(builder).build();
}

// The problem in which parameters are stored in the layout in which they are
// used (by a relay, if there are several users).
Problem stored_as_used(const StrategySpace& space, Problem problem) {
  std::map<const EdgeTable*, std::shared_ptr<const EdgeTable>> tables;
  for (std::size_t e = 0; e < problem.edges.size(); ++e) {
    const SpaceEdge& edge = space.edges()[e];
    const SpaceNode& source = space.nodes()[edge.source];
    if (source.kind != SpaceNodeKind::kSource ||
        space.graph().node(source.node).kind != NodeKind::kParameter) {
      continue;
    }
    auto& table = problem.edges[e].table;
    auto& slot = tables[table.get()];
    if (slot == nullptr) slot = cells_as_used(space, edge, *table);
    table = slot;
  }
  return problem;
}

std::vector<ConfigMask> everything(const Problem& problem) {
  std::vector<ConfigMask> masks;
  for (const auto& node : problem.nodes) {
    masks.emplace_back(node->num_configs(), true);
  }
  return masks;
}

// The ends of a frontier are exact under any epsilon; a large one asks for
// nothing else.
constexpr double kEndsOnly = 1;

SearchOptions ends_of(SearchOptions options) {
  options.epsilon = std::max(options.epsilon, kEndsOnly);
  return options;
}

SearchOptions without_limit(SearchOptions options) {
  options.memory_limit = std::numeric_limits<double>::infinity();
  return options;
}

}  // namespace

Strategy BaselineResult::unroll(int point) const {
  TO_CHECK(0 <= point && point < static_cast<int>(points_.size()),
           "point {} of a frontier of {}", point, points_.size());
  const Part& part = *parts_[origins_[point].part];
  Strategy strategy =
      part.subproblem.in_whole(part.result.unroll(origins_[point].point));
  strategy.time = std::max(strategy.time, points_[point].time);
  return strategy;
}

BaselineResult BaselineResult::told(const LeastStepTime& time_s) const {
  const Told told =
      tell(points_, [&](int point) { return time_s(unroll(point)); });
  BaselineResult result = *this;
  result.points_ = told.points;
  result.origins_.clear();
  for (const int point : told.from) {
    result.origins_.push_back(origins_[point]);
  }
  return result;
}

// Unites the frontiers; parts without a point left are freed.
void BaselineResult::add(Part part) {
  exact_ = exact_ && part.result.exact();
  FrontierBuilder builder;
  for (std::size_t i = 0; i < points_.size(); ++i) {
    builder.add(points_[i], static_cast<std::uint32_t>(origins_[i].part),
                static_cast<std::uint32_t>(origins_[i].point));
  }
  const auto points = part.result.points();
  for (std::size_t i = 0; i < points.size(); ++i) {
    builder.add(points[i], static_cast<std::uint32_t>(parts_.size()),
                static_cast<std::uint32_t>(i));
  }
  Frontier frontier;
  builder.move_to(frontier);
  parts_.push_back(std::make_shared<const Part>(std::move(part)));
  points_.clear();
  origins_.clear();
  std::vector<bool> needed(parts_.size(), false);
  for (std::size_t i = 0; i < frontier.size(); ++i) {
    points_.push_back({frontier.memory[i], frontier.time[i]});
    origins_.push_back({static_cast<int>(frontier.left[i]),
                        static_cast<int>(frontier.right[i])});
    needed[frontier.left[i]] = true;
  }
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    if (!needed[p]) parts_[p] = nullptr;
  }
}

void BaselineResult::add_all(Subproblem subproblem,
                             const SearchOptions& options) {
  auto found = search_if_any(subproblem.problem, options);
  if (found) add({std::move(subproblem), *std::move(found)});
}

void BaselineResult::keep_only(int point) {
  points_ = {points_[point]};
  origins_ = {origins_[point]};
}

bool BaselineResult::beats(Point point) const {
  return std::any_of(points_.begin(), points_.end(),
                     [&](Point known) { return dominates(known, point); });
}

Baselines::Baselines(const StrategySpace& space, const Problem& problem)
    : space_(space),
      as_used_problem_(stored_as_used(space, problem)),
      roles_(space),
      whole_(problem),
      as_used_(as_used_problem_) {}

BaselineResult Baselines::find(Baseline baseline,
                               const SearchOptions& options) {
  const SearchOptions unlimited = without_limit(options);
  switch (baseline) {
    case Baseline::kDataParallel:
      return play(uniform(RoleKind::kData), unlimited);
    case Baseline::kZero3:
      return play(uniform(RoleKind::kShard), unlimited);
    case Baseline::kMegatron:
      return find_megatron(unlimited);
    case Baseline::kMeshTensorFlow:
      return find_mesh_tensorflow(unlimited);
    case Baseline::kOptCnn:
      return find_opt_cnn(ends_of(unlimited));
    case Baseline::kToFu:
      break;
  }
  BaselineResult result =
      play(uniform(RoleKind::kEverything), ends_of(unlimited));
  if (!result.points_.empty()) result.keep_only(0);
  return result;
}

AxisRoles Baselines::uniform(RoleKind kind) const {
  return AxisRoles(space_.machine().mesh.num_axes(), AxisRole{kind});
}

BaselineResult Baselines::play(const AxisRoles& roles,
                               const SearchOptions& options) {
  BaselineResult result;
  result.add_all(whole_.make(roles_.allowed(roles)), without_limit(options));
  return result;
}

BaselineResult Baselines::within(const Problem& problem,
                                 const std::vector<ConfigMask>& allowed,
                                 const SearchOptions& options) {
  BaselineResult result;
  SubproblemMaker maker(problem);
  result.add_all(maker.make(allowed), without_limit(options));
  return result;
}

// The degree is the product of the innermost axes; degree 1 is data parallel.
BaselineResult Baselines::find_megatron(const SearchOptions& options) {
  BaselineResult result;
  AxisRoles roles = uniform(RoleKind::kData);
  for (int axis = space_.machine().mesh.num_axes(); axis >= 0; --axis) {
    if (axis < space_.machine().mesh.num_axes()) {
      roles[axis] = {RoleKind::kTensor};
    }
    result.add_all(as_used_.make(roles_.allowed(roles)), options);
  }
  return result;
}

BaselineResult Baselines::find_opt_cnn(const SearchOptions& options) {
  BaselineResult result;
  result.add_all(as_used_.make(everything(as_used_problem_)), options);
  if (!result.points_.empty()) {
    result.keep_only(static_cast<int>(result.points_.size()) - 1);
  }
  return result;
}

// Some operator has a factor of this name that can be cut so often.
bool Baselines::divides_somewhere(int name, std::int64_t parts) const {
  for (const Node& node : space_.graph().nodes()) {
    if (node.kind != NodeKind::kOp) continue;
    const Rule& rule = space_.rule(node.id);
    for (std::size_t f = 0; f < rule.factors.size(); ++f) {
      const Factor& split = rule.factors[f];
      const bool uneven = split.uneven && split.count() >= parts;
      if (split.count() % parts != 0 && !uneven) continue;
      const int factor = static_cast<int>(f);
      if (roles_.dims().of_factor(node, factor).name == name) return true;
    }
  }
  return false;
}

// Every map from axes to names or nothing that some operator can follow, alike
// axes in ascending order.
std::vector<AxisRoles> Baselines::maps() const {
  const Mesh& mesh = space_.machine().mesh;
  const bool ordered = space_.options().config_space == ConfigSpace::kOrdered;
  std::vector<AxisRoles> maps{{}};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::vector<AxisRoles> longer;
    for (const AxisRoles& map : maps) {
      const bool tied = ordered && axis > 0 && mesh.alike(axis - 1, axis);
      const int first = tied ? map.back().name : NamedDims::kUnnamed;
      for (int name = first; name < roles_.dims().num_names(); ++name) {
        AxisRoles next = map;
        next.push_back({RoleKind::kSplit, name});
        longer.push_back(std::move(next));
      }
    }
    maps = std::move(longer);
  }
  std::map<std::pair<int, std::int64_t>, bool> possible;
  std::erase_if(maps, [&](const AxisRoles& map) {
    std::map<int, std::int64_t> parts;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      parts.try_emplace(map[axis].name, 1).first->second *= mesh.size(axis);
    }
    return std::any_of(parts.begin(), parts.end(), [&](const auto& part) {
      if (part.first == NamedDims::kUnnamed) return false;
      const auto [entry, added] = possible.try_emplace(part, false);
      if (added) entry->second = divides_somewhere(part.first, part.second);
      return !entry->second;
    });
  });
  return maps;
}

BaselineResult Baselines::find_mesh_tensorflow(const SearchOptions& options) {
  struct Map {
    AxisRoles roles;
    Point bound;
  };
  Workers workers(options.num_threads);
  std::vector<Map> maps;
  for (AxisRoles& roles : this->maps()) maps.push_back({std::move(roles), {}});
  const int count = static_cast<int>(maps.size());
  workers.run(count, [&](int m) {
    const auto masks = roles_.allowed(maps[m].roles);
    maps[m].bound = lower_bound(whole_.make(masks).problem);
  });
  // Good ones first, which rule out others.
  std::stable_sort(maps.begin(), maps.end(), [](const Map& a, const Map& b) {
    return a.bound.memory * a.bound.time < b.bound.memory * b.bound.time;
  });
  SearchOptions serial = options;
  serial.num_threads = 1;
  BaselineResult result;
  for (int begin = 0; begin < count; begin += kMapsAtOnce) {
    std::vector<std::optional<BaselineResult::Part>> found(
        std::min(kMapsAtOnce, count - begin));
    workers.run(static_cast<int>(found.size()), [&](int i) {
      const Map& map = maps[begin + i];
      if (result.beats(map.bound)) return;
      Subproblem part = whole_.make(roles_.allowed(map.roles));
      auto points = search_if_any(part.problem, serial);
      if (points) found[i].emplace(std::move(part), *std::move(points));
    });
    for (auto& part : found) {
      if (part) result.add(*std::move(part));
    }
  }
  return result;
}

}  // namespace tensoropt
