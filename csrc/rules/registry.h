// The table of operator definitions.
//
//   const OpDefinition* definition = builtin_registry().find(node.target);
//   Rule rule = rule_of(builtin_registry(), graph, node);
//
// Users add operators of their own by declaring rules (rule_book.h).
//
// An operator that is not in the table gets the replicated rule: it runs whole
// on every device.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rules/rule.h"

namespace tensoropt {

class Registry {
 public:
  void add(std::string target, OpDefinition definition);
  // All of another table, whose operators fuse.
  void add_fused(const Registry& others);
  const OpDefinition* find(const std::string& target) const;
  std::vector<std::string> targets() const;

 private:
  std::unordered_map<std::string, OpDefinition> definitions_;
};

// All operators that come with the library; built on first use, then constant.
const Registry& builtin_registry();

// The rule of an operator node, checked against its shapes (InternalError if
// the rule is inconsistent).
Rule rule_of(const Registry& registry, const Graph& graph, const Node& node);

// How the node's call differs on one rank.
LocalForm local_form_of(const Registry& registry, const Graph& graph,
                        const Node& node, const LocalContext& context);

// Each family's file adds its own operators.
void register_attention(Registry& registry);
void register_batch_norm(Registry& registry);
void register_buffers(Registry& registry);
void register_complex_numbers(Registry& registry);
void register_convolution(Registry& registry);
void register_creation(Registry& registry);
void register_distances(Registry& registry);
void register_einsum(Registry& registry);
void register_elementwise(Registry& registry);
void register_embedding(Registry& registry);
void register_fourier(Registry& registry);
void register_indexing(Registry& registry);
void register_losses(Registry& registry);
void register_masked_scatter(Registry& registry);
void register_matmul(Registry& registry);
void register_matrices(Registry& registry);
void register_normalization(Registry& registry);
void register_pointwise_losses(Registry& registry);
void register_pooling(Registry& registry);
void register_random(Registry& registry);
void register_reductions(Registry& registry);
void register_rearrange(Registry& registry);
void register_recurrent(Registry& registry);
void register_routed_experts(Registry& registry);
void register_scans(Registry& registry);
void register_sampling(Registry& registry);
void register_sequence_losses(Registry& registry);
void register_views(Registry& registry);

}  // namespace tensoropt
