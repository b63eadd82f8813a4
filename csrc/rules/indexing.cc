// Reading and writing elements at positions that tensors give. The positions
// and the dims that are taken whole can be split. The dims that positions count
// in stay whole, but where one tensor of positions reads along one dim: then
// each rank reads what it has and gives zeros for the rest.

#include <algorithm>
#include <string_view>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// Which dim of operand 0 the call is about.
int named_dim(const RuleBuilder& rule, const Node& node) {
  return normalize_dim(node.int_argument("dim", 0),
                       rule.operand_shape(0).size());
}

// Binds the dims other than `dim` that have one size in all of `operands` and
// in the output.
void bind_common_dims(RuleBuilder& rule, int dim,
                      const std::vector<int>& operands) {
  const auto& out = rule.output_shape(0);
  for (int d = 0; d < static_cast<int>(out.size()); ++d) {
    const bool common =
        d != dim && std::all_of(operands.begin(), operands.end(), [&](int i) {
          return rule.operand_shape(i)[d] == out[d];
        });
    if (!common) continue;
    const int factor = rule.factor(str_format("d{}", d), out[d]);
    for (const int i : operands) rule.bind_operand(i, d, factor);
    rule.bind_output(0, d, factor);
  }
}

constexpr int kLookedUp = 0;  // the factor of the dim that is looked up

// A split of the looked-up dim leaves a pending sum, which integers have not.
int looked_up_factor(RuleBuilder& rule, const Graph& graph, const Node& node,
                     int dim) {
  const TensorMeta& table = graph.operand(node, 0).meta;
  const bool sums = dim >= 0 && is_floating_point(table.dtype);
  const int factor = rule.factor("v", sums ? table.shape[dim] : 1);
  if (sums) rule.bind_operand(0, dim, factor);
  return factor;
}

// More than touching each element once where the table is trained: such a
// look-up is worth splitting.
void look_up_flops(RuleBuilder& rule) {
  const double elements = rule.output_elements();
  rule.flops(rule.operand_requires_grad(0) ? 2 * elements : elements, elements);
}

bool splits_looked_up(const LocalContext& context) {
  return !context.factor_axes.empty() && context.factor_axes[kLookedUp] != 0;
}

// The first position of this rank.
std::int64_t first_position(const LocalContext& context, std::int64_t size) {
  return context.range(kLookedUp, size).begin;
}

// Rows of dim 0 as an embedding looks them up; positions may count from the
// end.
LocalForm rows_local(const Graph& graph, const Node& node,
                     const LocalContext& context) {
  LocalForm form;
  if (!splits_looked_up(context)) return form;
  constexpr std::int64_t kNoPadding = -1;
  const std::int64_t rows = graph.operand(node, 0).meta.shape[0];
  form.target = "tensoropt.embedding_shard.default";
  form.extra = {first_position(context, rows), kNoPadding, rows};
  return form;
}

// out[i][j] = self[index[i][j]][j] for dim 0.
Rule gather_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.save_operand(1);
  rule.linear_in({0});
  look_up_flops(rule);
  if (rule.operand_shape(0).empty() || rule.operand_shape(1).empty()) {
    return rule.take();
  }
  const int dim = named_dim(rule, node);
  looked_up_factor(rule, graph, node, dim);
  rule.looks_up({.operand = 1, .size = rule.operand_shape(0)[dim]});
  bind_common_dims(rule, dim, {0, 1});
  const int positions = rule.factor("i", rule.operand_shape(1)[dim]);
  rule.bind_operand(1, dim, positions);
  rule.bind_output(0, dim, positions);
  return rule.take();
}

LocalForm gather_local(const Graph& graph, const Node& node,
                       const LocalContext& context) {
  LocalForm form;
  if (!splits_looked_up(context)) return form;
  const Shape& shape = graph.operand(node, 0).meta.shape;
  const int dim = normalize_dim(node.int_argument("dim", 0), shape.size());
  form.target = "tensoropt.gather_shard.default";
  form.extra = {std::int64_t{dim}, first_position(context, shape[dim])};
  return form;
}

// As gather, where dims of size 1 broadcast. Without a dim all elements of self
// are one dim.
Rule take_along_dim_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.save_operand(1);
  rule.linear_in({0});
  rule.flops(rule.output_elements(), rule.output_elements());
  if (!node.find("dim")) return rule.take();
  const int dim = named_dim(rule, node);
  rule.broadcast();
  rule.bind_operand(0, dim, kNoFactor);
  rule.looks_up({.operand = 1, .size = rule.operand_shape(0)[dim]});
  return rule.take();
}

// Rows of `dim` in the order of a vector.
Rule index_select_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& shape = rule.operand_shape(0);
  rule.save_operand(1);
  rule.linear_in({0});
  look_up_flops(rule);
  if (shape.empty() || rule.operand_shape(1).empty()) return rule.take();
  const int dim = named_dim(rule, node);
  looked_up_factor(rule, graph, node, dim == 0 ? 0 : kNoFactor);
  rule.looks_up({.operand = 1, .size = shape[dim]});
  bind_common_dims(rule, dim, {0});
  const int positions = rule.factor("i", rule.operand_shape(1)[0]);
  rule.bind_operand(1, 0, positions);
  rule.bind_output(0, dim, positions);
  return rule.take();
}

// How what is written at one place combines with what is there.
enum class Writes { kOver, kAdds, kOther };

Writes writes_of(const Node& node) {
  const Literal* reduce = node.find("reduce");
  if (node.target == "aten.scatter_add.default") return Writes::kAdds;
  if (!reduce) return Writes::kOver;
  const auto& how = std::get<std::string>(*reduce);
  const bool adds = how == "add" || how == "sum";
  return adds && node.bool_argument("include_self", true) ? Writes::kAdds
                                                          : Writes::kOther;
}

// Pending sums pass through what only moves or adds numbers.
void pass_written_sums(RuleBuilder& rule, const Node& node, Writes writes,
                       int source) {
  if (writes == Writes::kOther) return;
  if (source >= 0) {
    rule.linear_in({0, source});
  } else if (node.double_argument("value", 1) == 0) {
    rule.linear_in({0});
  }
}

struct OperandDim {
  int operand;
  int dim;
};

// Positions whose values are added to what is there can be split: each rank
// adds its own.
void bind_added(RuleBuilder& rule, const std::vector<OperandDim>& dims) {
  const auto& [first, first_dim] = dims.front();
  const int factor = rule.factor("i", rule.operand_shape(first)[first_dim]);
  for (const auto& [operand, dim] : dims)
    rule.bind_operand(operand, dim, factor);
  rule.additive(0);
}

// self[index[i][j]][j] = src[i][j] for dim 0, or a number.
Rule scatter_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const int source = node.operand_index("src");
  const Writes writes = writes_of(node);
  pass_written_sums(rule, node, writes, source);
  rule.save_operand(1);
  if (writes == Writes::kOther) {
    rule.save_operand(0);
    rule.save_output(0);
    if (source >= 0) rule.save_operand(source);
  }
  rule.flops(rule.output_elements(), rule.output_elements());
  if (rule.operand_shape(0).empty() || rule.operand_shape(1).empty()) {
    return rule.take();
  }
  const int dim = named_dim(rule, node);
  std::vector<int> operands{0, 1};
  if (source >= 0) operands.push_back(source);
  rule.looks_up({.operand = 1, .size = rule.operand_shape(0)[dim]});
  bind_common_dims(rule, dim, operands);
  const bool fits = source >= 0 && rule.operand_shape(source)[dim] ==
                                       rule.operand_shape(1)[dim];
  if (writes == Writes::kAdds && fits) {
    bind_added(rule, {{1, dim}, {source, dim}});
  }
  return rule.take();
}

// Rows of `dim` written, or added, at the positions of a vector; a number fills
// them.
Rule index_rows_rule(const Graph& graph, const Node& node, bool adds) {
  RuleBuilder rule(graph, node);
  const int source = node.operand_index("source");
  pass_written_sums(rule, node, Writes::kOver, source);
  rule.save_operand(1);
  rule.flops(rule.output_elements(), rule.output_elements());
  if (rule.operand_shape(0).empty() || rule.operand_shape(1).empty()) {
    return rule.take();
  }
  const int dim = named_dim(rule, node);
  // Filling counts from the end as well.
  rule.looks_up(
      {.operand = 1, .size = rule.operand_shape(0)[dim], .wraps = source < 0});
  bind_common_dims(
      rule, dim,
      source >= 0 ? std::vector<int>{0, source} : std::vector<int>{0});
  if (adds) bind_added(rule, {{1, 0}, {source, dim}});
  return rule.take();
}

// self[:, i, :, j]: tensors of positions that broadcast to `shape`, and None
// for dims that are taken whole.
struct Positions {
  std::vector<int> index_of;  // by dim of self: the operand, or -1
  Shape shape;
  int at = 0;  // where in what is read the dims of `shape` begin

  Positions(const Graph& graph, const Node& node)
      : index_of(node.operand_indices("indices")) {
    index_of.resize(graph.operand(node, 0).meta.shape.size(), -1);
    bool adjacent = true;
    int last = -1;
    for (int dim = 0; dim < static_cast<int>(index_of.size()); ++dim) {
      if (index_of[dim] < 0) continue;
      adjacent = adjacent && (last < 0 || last == dim - 1);
      if (last < 0) at = dim;
      last = dim;
      broadcast(graph.operand(node, index_of[dim]).meta.shape);
    }
    if (!adjacent) at = 0;
  }

 private:
  void broadcast(const Shape& other) {
    if (other.size() > shape.size()) {
      shape.insert(shape.begin(), other.size() - shape.size(), 1);
    }
    for (std::size_t i = 0; i < other.size(); ++i) {
      std::int64_t& size = shape[shape.size() - other.size() + i];
      size = std::max(size, other[i]);
    }
  }
};

// A dim of what is read: a whole dim of self, or one of the positions.
struct ReadDim {
  int self_dim = -1;
  int position = -1;
};

std::vector<ReadDim> read_dims(const Positions& positions) {
  std::vector<ReadDim> dims;
  for (int dim = 0; dim < static_cast<int>(positions.index_of.size()); ++dim) {
    if (positions.index_of[dim] < 0) dims.push_back({.self_dim = dim});
  }
  for (int j = static_cast<int>(positions.shape.size()) - 1; j >= 0; --j) {
    dims.insert(dims.begin() + positions.at, {.position = j});
  }
  return dims;
}

// Binds position dim `position` in the indices that are not 1 there.
void bind_indices(RuleBuilder& rule, const Positions& positions, int position,
                  int factor) {
  for (const int operand : positions.index_of) {
    if (operand < 0) continue;
    const auto& shape = rule.operand_shape(operand);
    const int dim = position - static_cast<int>(positions.shape.size()) +
                    static_cast<int>(shape.size());
    if (dim >= 0 && shape[dim] == positions.shape[position]) {
      rule.bind_operand(operand, dim, factor);
    }
  }
}

// A mask instead of positions: the number of elements that it reads depends on
// its values.
bool has_mask(const Graph& graph, const Node& node) {
  for (const int operand : node.operand_indices("indices")) {
    if (operand < 0) continue;
    const DType dtype = graph.operand(node, operand).meta.dtype;
    if (dtype == DType::kBool || dtype == DType::kUInt8) return true;
  }
  return false;
}

void look_up_positions(RuleBuilder& rule, const Positions& positions) {
  const auto& shape = rule.operand_shape(0);
  for (std::size_t dim = 0; dim < positions.index_of.size(); ++dim) {
    const int operand = positions.index_of[dim];
    if (operand < 0) continue;
    rule.looks_up({.operand = operand, .size = shape[dim], .wraps = true});
  }
}

void save_indices(RuleBuilder& rule, const Node& node) {
  for (const int operand : node.operand_indices("indices")) {
    if (operand >= 0) rule.save_operand(operand);
  }
}

// Whether one tensor of positions reads rows of dim 0.
bool reads_rows(const Positions& positions) {
  return std::count(positions.index_of.begin(), positions.index_of.end(), -1) +
                 1 ==
             std::ssize(positions.index_of) &&
         positions.index_of[0] >= 0;
}

Rule index_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.linear_in({0});
  rule.flops(rule.output_elements(), rule.output_elements());
  save_indices(rule, node);
  if (has_mask(graph, node)) return rule.take();
  const Positions positions(graph, node);
  look_up_positions(rule, positions);
  const bool rows = reads_rows(positions);
  looked_up_factor(rule, graph, node, rows ? 0 : kNoFactor);
  if (rows) look_up_flops(rule);
  const std::vector<ReadDim> dims = read_dims(positions);
  for (int out = 0; out < static_cast<int>(dims.size()); ++out) {
    const auto& [self_dim, position] = dims[out];
    const int factor =
        rule.factor(str_format("d{}", out), rule.output_shape(0)[out]);
    rule.bind_output(0, out, factor);
    if (self_dim >= 0) {
      rule.bind_operand(0, self_dim, factor);
    } else {
      bind_indices(rule, positions, position, factor);
    }
  }
  return rule.take();
}

// Binds a dim of the values, which broadcast against what would be read.
void bind_values(RuleBuilder& rule, int values, int dims_from_right,
                 std::int64_t size, int factor) {
  const auto& shape = rule.operand_shape(values);
  const int dim = static_cast<int>(shape.size()) - dims_from_right;
  if (dim >= 0 && shape[dim] == size) rule.bind_operand(values, dim, factor);
}

// One value written where a mask over the first dims is set.
void bind_masked(RuleBuilder& rule, const Node& node, int values) {
  const std::vector<int> indices = node.operand_indices("indices");
  if (indices.size() != 1 || !rule.operand_shape(values).empty()) return;
  const auto& shape = rule.operand_shape(0);
  const auto& mask = rule.operand_shape(indices[0]);
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    const int factor = rule.factor(str_format("d{}", dim), shape[dim]);
    rule.bind_operand(0, dim, factor);
    rule.bind_output(0, dim, factor);
    if (dim < static_cast<int>(mask.size())) {
      rule.bind_operand(indices[0], dim, factor);
    }
  }
}

// self[indices] = values, or += values: then positions can be split.
Rule index_put_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const int values = node.operand_index("values");
  const bool adds = node.bool_argument("accumulate", false);
  rule.linear_in({0, values});
  rule.flops(rule.output_elements(), rule.output_elements());
  save_indices(rule, node);
  if (has_mask(graph, node)) {
    bind_masked(rule, node, values);
    return rule.take();
  }
  if (adds) rule.additive(0);
  const Positions positions(graph, node);
  look_up_positions(rule, positions);
  const std::vector<ReadDim> dims = read_dims(positions);
  for (int read = 0; read < static_cast<int>(dims.size()); ++read) {
    const auto& [self_dim, position] = dims[read];
    if (position >= 0 && !adds) continue;
    const std::int64_t size = self_dim >= 0 ? rule.operand_shape(0)[self_dim]
                                            : positions.shape[position];
    const int factor = rule.factor(str_format("d{}", read), size);
    if (self_dim >= 0) {
      rule.bind_operand(0, self_dim, factor);
      rule.bind_output(0, self_dim, factor);
    } else {
      bind_indices(rule, positions, position, factor);
    }
    bind_values(rule, values, static_cast<int>(dims.size()) - read, size,
                factor);
  }
  return rule.take();
}

// Ones at the classes, in a new last dim.
Rule one_hot_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.looks_up({.operand = 0, .size = rule.output_shape(0).back()});
  const auto& shape = rule.operand_shape(0);
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    const int factor = rule.factor(str_format("d{}", dim), shape[dim]);
    rule.bind_operand(0, dim, factor);
    rule.bind_output(0, dim, factor);
  }
  rule.flops(rule.output_elements(), 0);
  return rule.take();
}

// Where elements fall among sorted boundaries [..., n], whose leading dims are
// those of the elements.
Rule search_rule(const Graph& graph, const Node& node, int elements,
                 int boundaries) {
  RuleBuilder rule(graph, node);
  const auto& shape = rule.operand_shape(elements);
  const bool by_row = rule.operand_shape(boundaries).size() > 1;
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    const int factor = rule.factor(str_format("d{}", dim), shape[dim]);
    rule.bind_operand(elements, dim, factor);
    rule.bind_output(0, dim, factor);
    if (by_row && dim + 1 < static_cast<int>(shape.size())) {
      rule.bind_operand(boundaries, dim, factor);
    }
  }
  rule.flops(rule.output_elements(), 0);
  return rule.take();
}

void register_search(Registry& registry) {
  registry.add("aten.bucketize.Tensor",
               {[](const Graph& graph, const Node& node) {
                  return search_rule(graph, node, 0, 1);
                },
                {}});
  registry.add("aten.searchsorted.Tensor",
               {[](const Graph& graph, const Node& node) {
                  return search_rule(graph, node, 1, 0);
                },
                {}});
}

}  // namespace

void register_indexing(Registry& registry) {
  registry.add("aten.gather.default", {gather_rule, gather_local});
  registry.add("aten.take_along_dim.default", {take_along_dim_rule, {}});
  registry.add("aten.index_select.default", {index_select_rule, rows_local});
  for (const char* target :
       {"scatter.src", "scatter.value", "scatter.reduce",
        "scatter.value_reduce", "scatter_add.default", "scatter_reduce.two"}) {
    registry.add(str_format("aten.{}", target), {scatter_rule, {}});
  }
  for (const char* target :
       {"index_add.default", "index_copy.default", "index_fill.int_Scalar"}) {
    const bool adds = std::string_view(target) == "index_add.default";
    registry.add(str_format("aten.{}", target),
                 {[adds](const Graph& graph, const Node& node) {
                    return index_rows_rule(graph, node, adds);
                  },
                  {}});
  }
  registry.add("aten.index.Tensor", {index_rule, rows_local});
  for (const char* target :
       {"aten.index_put.default", "aten._unsafe_index_put.default"}) {
    registry.add(target, {index_put_rule, {}});
  }
  registry.add("aten.one_hot.default", {one_hot_rule, {}});
  register_search(registry);
}

}  // namespace tensoropt
