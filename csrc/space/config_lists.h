// The configs of space nodes with their costs; nodes with equal keys
// (config_keys.h) share a list, so that the search sees repeated blocks as
// such.
//
//   ConfigLists lists(model);
//   const ConfigList* list = lists.of_node(node);
//   list->configs[3].inputs;   // layouts there
//   list->costs[3];
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cost/op_cost.h"
#include "rules/config.h"
#include "space/config_keys.h"
#include "space/model.h"

namespace tensoropt {

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
  std::vector<CostParts> costs;  // by config
  // If max_configs left some out: those listed have at most so many runs.
  std::optional<int> max_runs = {};
};

class ConfigLists {
 public:
  // The model must outlive the lists.
  explicit ConfigLists(const SpaceModel& model) : model_(model) {}

  // Lists live as long as this object. Throws UserError if a source cannot be
  // stored, or shared out, as the options say.
  const ConfigList* of_node(const Node& node);
  const ConfigList* of_relay(const Value& value);

  // Whether every config is listed: max_configs left none out.
  bool complete() const { return complete_; }

 private:
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

  const Graph& graph() const { return model_.graph(); }
  const Mesh& mesh() const { return model_.machine().mesh; }
  const SpaceOptions& options() const { return model_.options(); }

  const SpaceModel& model_;
  std::map<ConfigKey, std::unique_ptr<ConfigList>> lists_;
  bool complete_ = true;
};

}  // namespace tensoropt
