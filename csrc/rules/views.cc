// Views of the whole tensor: reshapes, permutations, expansion.

#include <algorithm>
#include <numeric>

#include "rules/builder.h"
#include "rules/registry.h"

namespace tensoropt {

namespace {

// The dims of input and output that describe the same elements, e.g. [b, s]
// and [b*s]: the smallest runs with equal products.
struct DimGroup {
  int in_begin = 0, in_end = 0;
  int out_begin = 0, out_end = 0;
};

std::vector<DimGroup> dim_groups(const Shape& in, const Shape& out) {
  std::vector<DimGroup> groups;
  int i = 0;
  int o = 0;
  const int in_rank = static_cast<int>(in.size());
  const int out_rank = static_cast<int>(out.size());
  while (i < in_rank && o < out_rank) {
    DimGroup group{i, i + 1, o, o + 1};
    std::int64_t left = in[i++];
    std::int64_t right = out[o++];
    while (left != right) {
      if (left < right && i < in_rank) {
        left *= in[i++];
      } else if (o < out_rank) {
        right *= out[o++];
      } else {
        return groups;
      }
    }
    group.in_end = i;
    group.out_end = o;
    groups.push_back(group);
  }
  return groups;
}

int first_not_one(const Shape& shape, int begin, int end) {
  while (begin + 1 < end && shape[begin] == 1) ++begin;
  return begin;
}

// A block of the outermost dim of a group is a block on the other side too, so
// that dim can be split; inner dims cannot. A second operand only gives its
// shape, which is that of the output.
Rule reshape_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const auto& in = rule.operand_shape(0);
  const auto& out = rule.output_shape(0);
  for (const DimGroup& group : dim_groups(in, out)) {
    // Without entries there are no blocks that both sides have.
    if (std::count(in.begin() + group.in_begin, in.begin() + group.in_end, 0)) {
      continue;
    }
    const int i = first_not_one(in, group.in_begin, group.in_end);
    const int o = first_not_one(out, group.out_begin, group.out_end);
    const int factor =
        rule.factor(str_format("d{}", o), std::gcd(in[i], out[o]));
    rule.bind_operand(0, i, factor);
    rule.bind_output(0, o, factor);
    if (rule.num_operands() > 1) rule.bind_operand(1, o, factor);
  }
  rule.linear_in({0});
  rule.alias();
  return rule.take();
}

Rule permutation(const Graph& graph, const Node& node,
                 const std::vector<int>& order) {
  RuleBuilder rule(graph, node);
  for (int o = 0; o < static_cast<int>(order.size()); ++o) {
    const int factor =
        rule.factor(str_format("d{}", o), rule.output_shape(0)[o]);
    rule.bind_output(0, o, factor);
    rule.bind_operand(0, order[o], factor);
  }
  rule.linear_in({0});
  rule.alias();
  return rule.take();
}

std::vector<int> identity_order(std::size_t rank) {
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Rule swap_rule(const Graph& graph, const Node& node, const char* first,
               const char* second) {
  const std::size_t rank = graph.operand(node, 0).meta.shape.size();
  std::vector<int> order = identity_order(rank);
  if (rank > 0) {
    std::swap(order[normalize_dim(node.int_argument(first, -2), rank)],
              order[normalize_dim(node.int_argument(second, -1), rank)]);
  }
  return permutation(graph, node, order);
}

// Dims in `source` go to the places in `destination`, the others keep their
// order.
Rule move_rule(const Graph& graph, const Node& node) {
  const std::size_t rank = graph.operand(node, 0).meta.shape.size();
  const auto source = node.ints_argument("source");
  const auto destination = node.ints_argument("destination");
  std::vector<int> order(rank, -1);
  std::vector<bool> moved(rank, false);
  for (std::size_t i = 0; i < source.size(); ++i) {
    const int from = normalize_dim(source[i], rank);
    order[normalize_dim(destination[i], rank)] = from;
    moved[from] = true;
  }
  int next = 0;
  for (int& from : order) {
    if (from >= 0) continue;
    while (moved[next]) ++next;
    from = next++;
  }
  return permutation(graph, node, order);
}

Rule reverse_rule(const Graph& graph, const Node& node) {
  std::vector<int> order =
      identity_order(graph.operand(node, 0).meta.shape.size());
  return permutation(graph, node, {order.rbegin(), order.rend()});
}

Rule permute_rule(const Graph& graph, const Node& node) {
  std::vector<int> order;
  for (const std::int64_t dim : node.ints_argument("dims")) {
    order.push_back(
        normalize_dim(dim, graph.operand(node, 0).meta.shape.size()));
  }
  return permutation(graph, node, order);
}

Rule same_rule(const Graph& graph, const Node& node) {
  return permutation(graph, node,
                     identity_order(graph.operand(node, 0).meta.shape.size()));
}

// New places for dims of size 1, or new dims. A second operand only gives its
// shape.
Rule expand_rule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.broadcast();
  rule.linear_in({0});
  rule.view();
  return rule.take();
}

// Shape literals become local.
LocalFunction with_local_shape(const char* argument) {
  return [argument](const Graph&, const Node&, const LocalContext& context) {
    LocalForm form;
    form.arguments.push_back({argument, Literal(context.output_shapes[0])});
    return form;
  };
}

// A call that takes its shape from another tensor, whose layout may be another
// one.
LocalFunction with_shape_of(const char* target) {
  return [target](const Graph&, const Node&, const LocalContext& context) {
    LocalForm form;
    form.target = target;
    form.operands = {"self"};
    form.extra.push_back(context.output_shapes[0]);
    return form;
  };
}

// `sizes` of unflatten are those of the dims that replace `dim`.
LocalForm unflatten_local(const Graph& graph, const Node& node,
                          const LocalContext& context) {
  const std::size_t rank = graph.operand(node, 0).meta.shape.size();
  const int dim = normalize_dim(node.int_argument("dim", 0), rank);
  const std::size_t count = node.ints_argument("sizes").size();
  const Shape& local = context.output_shapes[0];
  LocalForm form;
  form.arguments.push_back(
      {"sizes", Literal(Shape(local.begin() + dim,
                              local.begin() + dim +
                                  static_cast<std::ptrdiff_t>(count)))});
  return form;
}

// Dims that are 1 on this shard only stay.
LocalForm squeeze_local(const Graph&, const Node&,
                        const LocalContext& context) {
  LocalForm form;
  form.target = "aten.reshape.default";
  form.extra.push_back(context.output_shapes[0]);
  return form;
}

void register_permutations(Registry& registry) {
  const auto add_swap = [&](const char* target, const char* first,
                            const char* second) {
    registry.add(target, {[=](const Graph& graph, const Node& node) {
                            return swap_rule(graph, node, first, second);
                          },
                          {}});
  };
  add_swap("aten.transpose.int", "dim0", "dim1");
  add_swap("aten.swapdims.default", "dim0", "dim1");
  add_swap("aten.swapaxes.default", "axis0", "axis1");
  add_swap("aten.mT.default", "dim0", "dim1");
  registry.add("aten.movedim.int", {move_rule, {}});
  registry.add("aten.movedim.intlist", {move_rule, {}});
  registry.add("aten.moveaxis.int", {move_rule, {}});
  registry.add("aten.moveaxis.intlist", {move_rule, {}});
  registry.add("aten.permute.default", {permute_rule, {}});
  registry.add("aten.t.default", {reverse_rule, {}});
  registry.add("aten.numpy_T.default", {reverse_rule, {}});
}

}  // namespace

void register_views(Registry& registry) {
  registry.add("aten.view.default", {reshape_rule, with_local_shape("size")});
  registry.add("aten._unsafe_view.default",
               {reshape_rule, with_local_shape("size")});
  registry.add("aten.reshape.default",
               {reshape_rule, with_local_shape("shape")});
  registry.add("aten.unflatten.int", {reshape_rule, unflatten_local});
  for (const char* target :
       {"aten.view_as.default", "aten.reshape_as.default"}) {
    registry.add(target, {reshape_rule, with_shape_of("aten.reshape.default")});
  }
  for (const char* target :
       {"aten.expand.default", "aten.broadcast_to.default"}) {
    registry.add(target, {expand_rule, with_local_shape("size")});
  }
  registry.add("aten.expand_as.default",
               {expand_rule, with_shape_of("aten.expand.default")});
  for (const char* target :
       {"aten.flatten.using_ints", "aten.ravel.default",
        "aten.unsqueeze.default", "aten.atleast_1d.default",
        "aten.atleast_2d.default", "aten.atleast_3d.default"}) {
    registry.add(target, {reshape_rule, {}});
  }
  for (const char* target :
       {"aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims"}) {
    registry.add(target, {reshape_rule, squeeze_local});
  }
  register_permutations(registry);
  for (const char* target :
       {"aten.alias.default", "aten.contiguous.default", "aten.detach.default",
        "aten.lift_fresh.default"}) {
    registry.add(target, {same_rule, {}});
  }
}

}  // namespace tensoropt
