#include "search_space/search_space.h"

#include <utility>

#include "common/check.h"
#include "problem/propagation.h"
#include "search/improvement.h"
#include "space/space_problem.h"

namespace tensoropt {

SearchSpace::SearchSpace(std::shared_ptr<const Graph> graph,
                         std::shared_ptr<const Registry> registry,
                         SpaceSetup setup)
    : graph_(std::move(graph)),
      registry_(std::move(registry)),
      setup_(std::move(setup)),
      analytic_(setup_.cluster, setup_.mesh),
      measured_(setup_.mesh, setup_.collectives, analytic_),
      collectives_(measured_, setup_.overheads.collective_s),
      operators_(setup_.operators, setup_.cluster.device),
      space_(
          *graph_, *registry_,
          {setup_.mesh, setup_.cluster.device, collectives_,
           setup_.operators.empty() ? nullptr : &operators_, setup_.overheads},
          setup_.space),
      host_(space_, setup_.step) {}

const StrategyNames& SearchSpace::names() {
  const std::lock_guard lock(names_mutex_);
  if (!names_) names_.emplace(space_, setup_.step);
  return *names_;
}

void SearchSpace::restrict_to(std::vector<ConfigMask> allowed) {
  const std::lock_guard lock(problem_mutex_);
  TO_ASSERT(!is_asked_ && allowed_.empty(), "the problem is made already");
  allowed_ = std::move(allowed);
}

const Problem& SearchSpace::problem(int num_threads) {
  const std::lock_guard lock(problem_mutex_);
  is_asked_ = true;
  if (!problem_) {
    whole_ = SpaceProblem(space_, setup_.step).build(num_threads);
    problem_ = allowed_.empty() ? whole_ : restrict(whole_, allowed_);
  }
  return *problem_;
}

Problem SearchSpace::problem_of(const ProblemPart& part, int num_threads) {
  const std::lock_guard lock(problem_mutex_);
  is_asked_ = true;
  if (problem_) return *problem_;
  const Problem made =
      SpaceProblem(space_, setup_.step).build(num_threads, part);
  return allowed_.empty() ? made : restrict(made, allowed_);
}

SpaceNodeId SearchSpace::blocked_node(const std::vector<ConfigMask>& allowed) {
  problem(0);
  const Problem part = restrict(whole_, allowed);
  Propagation propagation(part);
  std::vector<ConfigMask> masks = propagation.all_configs();
  return space_node(propagation.run(masks));
}

SearchResult SearchSpace::search(const SearchOptions& options,
                                 const std::vector<ConfigMask>& allowed) {
  const Problem& whole = problem(options.num_threads);
  const SearchResult found =
      allowed.empty() ? tensoropt::search(whole, options)
                      : tensoropt::search(restrict(whole, allowed), options);
  if (!host_.counts()) return found;
  return found.told([&](const Strategy& one) { return host_.of(one); },
                    host_.least());
}

BaselineResult SearchSpace::play(const AxisRoles& roles,
                                 const SearchOptions& options) {
  const std::vector<ConfigMask> allowed = RoleMasks(space_).allowed(roles);
  const Problem problem = problem_of({.allowed = allowed}, options.num_threads);
  return told(Baselines::within(problem, allowed, options));
}

double SearchSpace::least_memory(SearchOptions options) {
  constexpr double kOnlyTheEnds = 1e9;  // any error is allowed between them
  constexpr double kRounding = 1e-12;   // of sums in another order
  options.epsilon = kOnlyTheEnds;
  options.only_picks = false;
  SearchResult found = tensoropt::search(
      problem_of({.without_reshards = true}, options.num_threads), options);
  if (!found.exact()) {  // other strategies may be left out of the whole
    found = tensoropt::search(problem(options.num_threads), options);
  }
  return (1 - kRounding) * found.min_memory();
}

BaselineResult SearchSpace::told(const BaselineResult& result) const {
  if (!host_.counts()) return result;
  return result.told([&](const Strategy& one) { return host_.of(one); });
}

void SearchSpace::build_in_flight(const std::vector<int>& numbers,
                                  int num_threads) {
  const std::lock_guard lock(problem_mutex_);
  std::vector<StepShape> shapes;
  for (const int number : numbers) {
    shapes.push_back({setup_.step.micro_batches, number});
  }
  std::vector<Problem> problems =
      SpaceProblem(space_, setup_.step).build_all(shapes, num_threads);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    in_flight_.insert_or_assign(numbers[i], std::move(problems[i]));
  }
}

const Problem& SearchSpace::problem_in_flight(int number) {
  const std::lock_guard lock(problem_mutex_);
  const auto found = in_flight_.find(number);
  TO_CHECK(found != in_flight_.end(),
           "{} micro-batches in flight: build_in_flight was not called for "
           "that",
           number);
  return found->second;
}

SearchResult SearchSpace::search_in_flight(int number,
                                           const SearchOptions& options) {
  return tensoropt::search(problem_in_flight(number), options);
}

// Of a relay the one whose value it passes on.
NodeId SearchSpace::graph_node_of(const SpaceNode& node) const {
  return node.kind == SpaceNodeKind::kRelay
             ? space_.graph().value(node.value).producer
             : node.node;
}

bool SearchSpace::is_shared_source(SpaceNodeId node) const {
  const SpaceNode& at = space_.nodes()[node];
  return at.kind == SpaceNodeKind::kRelay &&
         graph_->node(graph_node_of(at)).kind != NodeKind::kOp;
}

bool SearchSpace::may_improve_in_flights(
    const IndexedVector<NodeId, int>& numbers, const SearchOptions& options) {
  TO_CHECK(numbers.size() == graph_->nodes().size(),
           "{} numbers in flight for {} nodes", numbers.size(),
           graph_->nodes().size());
  const auto problem_at = [&](SpaceNodeId node) -> const Problem& {
    return problem_in_flight(numbers[graph_node_of(space_.nodes()[node])]);
  };
  Problem mixed;
  for (std::size_t n = 0; n < space_.nodes().size(); ++n) {
    mixed.nodes.push_back(problem_at(SpaceNodeId(n)).nodes[n]);
  }
  // What an edge keeps, its target uses.
  for (std::size_t e = 0; e < space_.edges().size(); ++e) {
    const SpaceEdge& edge = space_.edges()[e];
    if (is_shared_source(edge.source) || is_shared_source(edge.target)) {
      continue;
    }
    mixed.edges.push_back(problem_at(edge.target).edges[e]);
  }
  return may_improve(mixed, options);
}

std::vector<bool> SearchSpace::nodes_of(
    const IndexedVector<NodeId, int>& places, const SpacePart& part) const {
  const std::vector<SpaceNode>& nodes = space_.nodes();
  std::vector<bool> found(nodes.size(), false);
  const auto is_source = [&](SpaceNodeId node) {
    return graph_->node(graph_node_of(nodes[node])).kind != NodeKind::kOp;
  };
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].kind == SpaceNodeKind::kOutput || is_source(SpaceNodeId(n))) {
      continue;
    }
    const int place = places[graph_node_of(nodes[n])];
    found[n] = part.first <= place && place < part.last;
  }
  for (const SpaceEdge& edge : space_.edges()) {
    if (found[edge.target] && is_source(edge.source)) {
      found[space_.node_of(graph_node_of(nodes[edge.source]))] = true;
    }
  }
  return found;
}

std::vector<SupportingLines> SearchSpace::least_of_parts(
    const IndexedVector<NodeId, int>& places,
    const std::vector<SpacePart>& parts,
    const SupportingLinesOptions& options) {
  TO_CHECK(places.size() == graph_->nodes().size(), "{} places for {} nodes",
           places.size(), graph_->nodes().size());
  std::vector<Problem> problems;
  for (const SpacePart& part : parts) {
    problems.push_back(
        part_of(problem_in_flight(part.in_flight), nodes_of(places, part)));
  }
  return supporting_lines_of(problems, options);
}

Baselines& SearchSpace::baselines(int num_threads) {
  const Problem& whole = problem(num_threads);
  const std::lock_guard lock(baselines_mutex_);
  if (!baselines_) baselines_.emplace(space_, whole);
  return *baselines_;
}

}  // namespace tensoropt
