// What a strategy space is built from: the graph with the rules of its
// operators in it, and what follows from both.
//
//   SpaceModel model(graph, registry, machine, options);
//   model.rule(node);              // without what is not worth splitting
//   model.is_needed(value);        // by backward
//   model.copies_parameter(node);  // see parameter_copies.h
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cost/machine.h"
#include "cost/op_profile.h"
#include "rules/registry.h"
#include "space/batch_rows.h"
#include "space/exclusions.h"
#include "space/idle_dims.h"
#include "space/options.h"
#include "space/recomputation.h"

namespace tensoropt {

class SpaceModel {
 public:
  // Registry and machine must outlive the model.
  SpaceModel(const Graph& graph, const Registry& registry,
             const Machine& machine, const SpaceOptions& options);

  // With the units of its values.
  const Graph& graph() const { return graph_; }
  const Machine& machine() const { return machine_; }
  const SpaceOptions& options() const { return options_; }
  const Rule& rule(NodeId node) const { return rules_[node]; }
  const RulesByNode& rules() const { return rules_; }
  const IdleDims& idle_dims() const { return *idle_dims_; }
  const DimClasses& dim_classes() const { return idle_dims_->classes(); }
  const Recomputation& recomputation() const { return *recomputation_; }
  // What the rules are without, and why; in no particular order.
  const Exclusions& exclusions() const { return exclusions_; }

  // Where the values have the rows of a batch of which the inputs have them
  // where `rows_dim` says.
  IndexedVector<ValueId, BatchRows> batch_rows(const RowsDim& rows_dim) const;
  // The dim in which a value has the rows, if inputs are shared out; -1: none.
  int rows_dim_of(ValueId value) const { return rows_[value].dim(); }

  // The call that a rank makes of an operator of the graph.
  LocalCall local_call_of(NodeId node, const OpConfig& config,
                          int rank = 0) const;

  // No input or parameter reaches it, and no stored constant.
  bool is_constant(ValueId value) const { return constant_[value]; }
  // Whether ranks may have parts of a source only.
  bool is_stored(const Node& node) const;
  // Whether the operator takes the layout of operand 0 as it comes.
  bool follows(const Node& node) const;
  bool copies_parameter(const Node& node) const;

  // Autograd keeps the storage of the value as some consumer got it.
  bool is_needed(ValueId value) const { return needed_[value]; }
  // The value is kept where it is made, before any consumer.
  bool is_saved_by_producer(ValueId value) const {
    return saved_by_producer_[value];
  }
  bool may_be_kept(ValueId value) const;

  // The gradient of a value as it is resharded: of the copy of a parameter
  // (parameter_copies.h) it has the dtype in which it is reduced.
  TensorMeta gradient_meta(const Value& value) const;
  // The dims of a value that some operator may split into parts that differ.
  DimSet uneven_dims_of(const Value& value) const;

 private:
  void find_rules();
  void find_saved();
  void find_recomputation();
  bool is_changed(const Value& value) const;

  Graph graph_;
  const Registry& registry_;
  Machine machine_;
  SpaceOptions options_;
  RulesByNode rules_;  // by graph node
  Exclusions exclusions_;
  IndexedVector<ValueId, bool> constant_;
  IndexedVector<ValueId, BatchRows> rows_;
  IndexedVector<ValueId, std::optional<DType>>
      copies_;  // see parameter_copies.h
  std::optional<IdleDims> idle_dims_;
  std::optional<Recomputation> recomputation_;
  IndexedVector<ValueId, bool> saved_by_producer_;
  IndexedVector<ValueId, bool> needed_;
};

}  // namespace tensoropt
