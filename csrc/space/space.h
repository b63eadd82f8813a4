// The space of strategies of a model on a mesh, and its translation into the
// search problem and back.
//
//   StrategySpace space(graph, builtin_registry(), machine, options);
//   Problem problem = space.build_problem(num_threads);
//   SearchResult result = search(problem, search_options);
//   Strategy best = result.unroll(0);
//   const SpaceEdge& edge = space.edges()[3];
//   space.source_port(edge, best.config[edge.source]);   // layouts there
//
// Space nodes are the operators and sources of the graph, its output, and one
// relay for every value with several consumers that is not an input
// or constant. A relay is an identity whose
// config says in which layout the consumers find the value, whether its
// gradient may stay Partial until all of them have added to it, and whether it
// is kept for backward; that of an operator says whether it runs again in
// backward (recomputation.h). So every cost lies on one node or one edge, which
// makes the search exact.
//
// Nodes with equal rules share their configs and tables, so that the search
// sees repeated blocks as such.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "cost/edge_cost.h"
#include "cost/op_profile.h"
#include "problem/problem.h"
#include "problem/strategy.h"
#include "rules/registry.h"
#include "space/batch_rows.h"
#include "space/config_keys.h"
#include "space/exclusions.h"
#include "space/idle_dims.h"
#include "space/recomputation.h"

namespace tensoropt {

constexpr std::size_t kDefaultMaxConfigs = 200;

// Where a parameter is computed with in a narrower dtype: in which one sums of
// its gradient over devices are made.
enum class ReduceDType { kParameter, kCompute };

struct SpaceOptions {
  ConfigSpace config_space = ConfigSpace::kOrdered;
  TrainingSetup training = TrainingSetup::of_states(2);
  // Every rank's loader gives its own share of the batch or the same global
  // batch.
  bool sharded_inputs = false;
  // Inputs that every rank gets whole even so, by name.
  std::set<std::string> whole_inputs = {};
  // Which dim of an input has the rows of the batch, by name; others: dim 0.
  std::map<std::string, int> input_dims = {};
  // Which of the outputs is what is trained on (-1: none): every rank gives it
  // the same gradient.
  int loss_output = -1;
  // Parameters and constants that are stored in this layout and no other, by
  // name.
  std::map<std::string, Layout> storage = {};
  // For each operator, parameter and relay at most so many layouts, those with
  // the fewest runs (see config.h). Keeps growth with the devices in hand.
  std::size_t max_configs = kDefaultMaxConfigs;
  // Spatial dims of convolutions and pooling may be split, neighbours exchange
  // borders. Multiplies the configs of convolutional networks.
  bool split_spatial = false;
  ReduceDType reduce_dtype = ReduceDType::kParameter;
  // Gradients of parameters are summed over devices so many bytes at once;
  // parameters are gathered, and sums scattered, fewer.
  double bucket_bytes = 0;
  double shard_bytes = 0;
  // Operators may run again in backward instead of keeping what they make.
  bool recompute = false;
  // The graph is that of one of so many micro-batches, which make a step.
  int micro_batches = 1;
  // Also configs that no good strategy needs: splits of constants, of dims that
  // are not worth it, pending sums that gain nothing. For those who ask what an
  // operator can do.
  bool idle_configs = false;
};

// Constants of so many bytes are stored in parts where that pays, smaller ones
// are whole on every device.
constexpr std::int64_t kLargeConstantBytes = std::int64_t{16} << 20;

// The dim along which each rank gets its own share of the input; -1: it gets
// all of it.
int shared_dim(const Graph& graph, const Node& node,
               const SpaceOptions& options);

struct SpaceConfig {
  std::string label = {};         // e.g. "b0,n again", for reports and plans
  std::string splits = {};        // the label without what becomes of the value
  OpConfig uses = {};             // of an operator
  Saved saved = Saved::kNothing;  // what an operator makes, or a relay's value
  std::vector<Port> inputs = {};
  std::vector<Port> outputs = {};
};

// The configs of all nodes with the same rule.
struct ConfigList {
  std::vector<SpaceConfig> configs;
  std::vector<OpCost> costs;  // by config
  // If max_configs left some out: those listed have at most so many runs.
  std::optional<int> max_runs = {};
};

enum class SpaceNodeKind { kSource, kOp, kRelay, kOutput };

struct SpaceNode {
  SpaceNodeKind kind = SpaceNodeKind::kOp;
  NodeId node = -1;    // of the graph; -1 for a relay
  ValueId value = -1;  // of a relay
  std::string name;    // one that repeats has a number, as in "scale (2)"
  const ConfigList* configs = nullptr;
};

struct SpaceEdge {
  int source = -1;
  int target = -1;
  int source_port = 0;
  int target_port = 0;
  ValueId value = -1;
  bool follows = false;  // the target takes the layout it gets
  // Which of both ends may run again.
  AllowedPairs pairs = AllowedPairs::all();
};

class StrategySpace {
 public:
  // Registry and machine must outlive the space.
  StrategySpace(const Graph& graph, const Registry& registry,
                const Machine& machine, const SpaceOptions& options);

  const std::vector<SpaceNode>& nodes() const { return nodes_; }
  const std::vector<SpaceEdge>& edges() const { return edges_; }
  // The model, with the units of its values.
  const Graph& graph() const { return graph_; }
  const Machine& machine() const { return machine_; }
  const Rule& rule(NodeId node) const { return rules_[node]; }
  // Where the values have the rows of a batch of which the inputs have them
  // where `rows_dim` says.
  std::vector<BatchRows> batch_rows(const RowsDim& rows_dim) const;
  const DimClasses& dim_classes() const { return idle_dims_->classes(); }
  const SpaceOptions& options() const { return options_; }
  ConfigSpace config_space() const { return options_.config_space; }
  // The space node of a graph node, or the relay of a value (-1: it has none).
  int node_of(NodeId node) const { return node_of_[node]; }
  int relay_of(ValueId value) const { return relay_of_[value]; }

  // The call that a rank makes of an operator of the graph.
  LocalCall local_call_of(NodeId node, const OpConfig& config,
                          int rank = 0) const;

  // The reshards of tensors of this shape and type. Thread-safe.
  const TensorResharder& resharder(const TensorMeta& meta) const;

  // The reshards of the value that an edge carries, and of the gradient that
  // comes back over it.
  SharedResharder value_resharder(const SpaceEdge& edge) const;
  SharedResharder gradient_resharder(const SpaceEdge& edge) const;

  // The gradient of a value as it is resharded: of the copy of a parameter
  // (parameter_copies.h) it has the dtype in which it is reduced.
  TensorMeta gradient_meta(const Value& value) const;

  // The dims of a value that some operator may split into parts that differ.
  DimSet uneven_dims_of(const Value& value) const;

  // Whether the edge leaves a cast that copies a parameter. The cast then is
  // part of its reshard: what is kept before it, is what is cast.
  bool casts(const SpaceEdge& edge) const;
  bool copies_parameter(const Node& node) const;

  const Port& source_port(const SpaceEdge& edge, int config) const {
    return nodes_[edge.source]
        .configs->configs[config]
        .outputs[edge.source_port];
  }
  const Port& target_port(const SpaceEdge& edge, int config) const {
    return nodes_[edge.target]
        .configs->configs[config]
        .inputs[edge.target_port];
  }

  // The way the edge is crossed between two configs; none if forbidden.
  EdgeOptions options_of(const SpaceEdge& edge, int source_config,
                         int target_config) const;
  // Whether it may be crossed so, at whatever cost.
  bool allows(const SpaceEdge& edge, int source_config, int target_config,
              const EdgeChoice& choice) const;

  // All tables. Complexity: the sum over distinct edges of the products of
  // their ends' config counts.
  Problem build_problem(int num_threads) const;

  // Throws UserError, naming what is wrong, if the strategy is of another
  // space.
  void check(const Strategy& strategy) const;

  // Whether max_configs left nothing out.
  bool complete() const { return complete_; }
  // What the rules are without, and why; in no particular order.
  const Exclusions& exclusions() const { return exclusions_; }
  // Operators without a rule, by target, in order of first use.
  const std::vector<std::string>& unknown_targets() const {
    return unknown_targets_;
  }

 private:
  struct EdgeKind;
  // The shape in units, and the bytes of a unit.
  using TensorKind = std::pair<Shape, std::int64_t>;

  void find_rules(const Registry& registry);
  void find_saved();
  void find_recomputation();
  bool may_be_kept(ValueId value) const;
  bool is_stored(const Node& node) const;
  bool is_changed(const Value& value) const;
  bool follows(const Node& node) const;
  bool leaves_parameter(const SpaceEdge& edge) const;
  void add_nodes();
  void add_edges();
  void add_resharders();
  void add_buckets();
  const ConfigList* configs_of_node(const Node& node);
  // `make` is called for a key that is new.
  const ConfigList* intern(const ConfigKey& key,
                           const std::function<ConfigList()>& make);
  ConfigKey key_of_node(const Node& node) const;
  OpKey op_key(const Node& node) const;
  SourceKey source_key(const Node& node) const;
  RelayKey relay_key(const Value& value) const;
  template <typename List>
  auto within_budget(ConfigList& configs, const List& list);
  ConfigList op_configs(const Node& node);
  ConfigList source_configs(const Node& node);
  std::vector<Layout> source_layouts(const Node& node, ConfigList& list);
  ConfigList output_configs(const Node& node) const;
  std::vector<Port> relay_ports(const Value& value,
                                const ConfigLimits& limits) const;
  ConfigList relay_configs(const Value& value);
  bool is_canonical(AxisSet pending, AxisSet whole) const;
  PassTimes times_of(const Node& node, const OpConfig& uses) const;
  OpCost cost_of(const Node& node, const OpConfig& uses, const PassTimes& times,
                 Saved saved) const;
  SharedResharder shared_resharder(
      const SpaceEdge& edge, const TensorMeta& meta,
      const std::map<TensorKind, MoveCosts>& in_bucket) const;
  EdgeKind kind_of(const SpaceEdge& edge) const;
  EdgeOptions options_of(const SpaceEdge& edge, const EdgeKind& kind,
                         int source_config, int target_config) const;
  // None if the edge cannot be crossed between these configs.
  std::optional<EdgeSpec> spec_of(const SpaceEdge& edge, const EdgeKind& kind,
                                  int source_config, int target_config) const;
  std::vector<bool> followers(const SpaceEdge& edge, int source_config) const;
  std::shared_ptr<const EdgeTable> edge_table(const SpaceEdge& edge) const;

  Graph graph_;  // with units
  const Registry& registry_;
  Machine machine_;
  SpaceOptions options_;
  std::vector<Rule> rules_;  // by graph node
  Exclusions exclusions_;
  // By value: no input or parameter reaches it, and no stored constant.
  std::vector<bool> constant_;
  std::vector<BatchRows> rows_;  // by value, if the inputs are shared out
  std::vector<std::optional<DType>> copies_;  // see parameter_copies.h
  std::optional<IdleDims> idle_dims_;
  std::optional<Recomputation> recomputation_;
  std::vector<bool> saved_by_producer_;  // by value: kept before any consumer
  std::vector<bool> needed_;  // by value: a consumer keeps its storage
  std::vector<SpaceNode> nodes_;
  std::vector<SpaceEdge> edges_;
  std::vector<int> node_of_;
  std::vector<int> relay_of_;
  std::map<ConfigKey, std::unique_ptr<ConfigList>> lists_;
  std::map<TensorKind, TensorResharder> resharders_;
  // Of parameters and of their gradients, where they may share a bucket.
  std::map<TensorKind, MoveCosts> gathered_together_;
  std::map<TensorKind, MoveCosts> summed_together_;
  bool complete_ = true;
  std::vector<std::string> unknown_targets_;
};

}  // namespace tensoropt
