// Every member of what nodes and edges are compared by takes part. A structured
// binding names all members, so a new one does not compile until it is varied
// here.
#include "space/config_keys.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <set>

#include "cost/edge_cost.h"

namespace tensoropt {
namespace {

void vary(bool& value) { value = !value; }
void vary(int& value) { ++value; }
void vary(std::int64_t& value) { ++value; }
void vary(double& value) { value += 1; }
void vary(DimSet& value) { ++value; }
void vary(std::string& value) { value += "x"; }
void vary(DType& value) {
  value = value == DType::kInt64 ? DType::kBFloat16 : DType::kInt64;
}
void vary(FactorKind& value) { value = FactorKind::kCombined; }
void vary(Collective& value) { value = Collective::kAllToAll; }
void vary(Pass& value) { value = Pass::kBackward; }
void vary(NodeKind& value) { value = NodeKind::kConstant; }
void vary(TensorMeta& value) { value.shape.push_back(3); }
void vary(TensorKey& value) { value.requires_grad = !value.requires_grad; }
void vary(Rule& value) { value.launches += 1; }

template <typename T>
void vary(std::vector<T>& value) {
  value.emplace_back();
}

void vary(std::optional<std::int64_t>& value) { value = 5; }
void vary(std::optional<DType>& value) { value = DType::kInt64; }
void vary(std::optional<Layout>& value) { value = Layout::replicated(1); }

void vary(EdgeTensor& value) {
  static const TensorMeta kOther{{7}, DType::kInt64};
  value = kOther;
}

// Whether copies in which one member each is varied differ from the original
// and from each other, in every order. `each(copy, visit)` visits all members.
template <typename T, typename Each>
void expect_all_take_part(const T& original, const Each& each) {
  std::set<T> all = {original};
  std::size_t count = 0;
  T counted = original;
  each(counted, [&](auto& /*member*/) { ++count; });
  for (std::size_t varied = 0; varied < count; ++varied) {
    T copy = original;
    std::size_t index = 0;
    each(copy, [&](auto& member) {
      if (index++ == varied) vary(member);
    });
    EXPECT_FALSE(copy == original) << "member " << varied;
    EXPECT_TRUE(all.insert(copy).second) << "member " << varied;
  }
  EXPECT_EQ(all.size(), count + 1);
}

const auto kVisitAll = [](const auto& visit, auto&... members) {
  (visit(members), ...);
};

TEST(ConfigKeys, EveryMemberOfATensorTakesPart) {
  expect_all_take_part(TensorMeta{}, [](TensorMeta& meta, const auto& visit) {
    auto& [shape, dtype, units] = meta;
    kVisitAll(visit, shape, dtype, units);
  });
  expect_all_take_part(TensorKey{}, [](TensorKey& key, const auto& visit) {
    auto& [meta, requires_grad] = key;
    kVisitAll(visit, meta, requires_grad);
  });
}

TEST(ConfigKeys, EveryMemberOfARuleTakesPart) {
  expect_all_take_part(Factor{}, [](Factor& factor, const auto& visit) {
    auto& [name, size, kind, spatial, joint, uneven, unit] = factor;
    kVisitAll(visit, name, size, kind, spatial, joint, uneven, unit);
  });
  expect_all_take_part(TensorRule{}, [](TensorRule& tensor, const auto& visit) {
    auto& [dims, saved, additive, moves] = tensor;
    kVisitAll(visit, dims, saved, additive, moves);
  });
  expect_all_take_part(ExtraSaved{}, [](ExtraSaved& extra, const auto& visit) {
    auto& [bytes, factors, only_if_split] = extra;
    kVisitAll(visit, bytes, factors, only_if_split);
  });
  expect_all_take_part(
      InnerCollective{}, [](InnerCollective& inner, const auto& visit) {
        auto& [kind, over, bytes, divided_by, pass, times] = inner;
        kVisitAll(visit, kind, over, bytes, divided_by, pass, times);
      });
  expect_all_take_part(Lookup{}, [](Lookup& lookup, const auto& visit) {
    auto& [operand, size, wraps, ignored] = lookup;
    kVisitAll(visit, operand, size, wraps, ignored);
  });
  expect_all_take_part(Rule{}, [](Rule& rule, const auto& visit) {
    auto& [factors, operands, outputs, linear_sets, forward_flops,
           backward_flops, extra_saved, collectives, lookups, launches, view,
           alias, cast, random, attention, fuses, repeatable, writes] = rule;
    kVisitAll(visit, factors, operands, outputs, linear_sets, forward_flops,
              backward_flops, extra_saved, collectives, lookups, launches, view,
              alias, cast, random, attention, fuses, repeatable, writes);
  });
}

TEST(ConfigKeys, EveryMemberOfAKeyTakesPart) {
  expect_all_take_part(OpKey{}, [](OpKey& key, const auto& visit) {
    auto& [rule, operands, outputs, copies_parameter, may_run_again, measured] =
        key;
    kVisitAll(visit, rule, operands, outputs, copies_parameter, may_run_again,
              measured);
  });
  expect_all_take_part(SourceKey{}, [](SourceKey& key, const auto& visit) {
    auto& [kind, tensor, is_stored, shared_dim, pinned, uneven_dims] = key;
    kVisitAll(visit, kind, tensor, is_stored, shared_dim, pinned, uneven_dims);
  });
  expect_all_take_part(RelayKey{}, [](RelayKey& key, const auto& visit) {
    auto& [tensor, splittable_shape, may_be_kept, may_leave,
           shares_pending_gradients, uneven_dims] = key;
    kVisitAll(visit, tensor, splittable_shape, may_be_kept, may_leave,
              shares_pending_gradients, uneven_dims);
  });
}

TEST(ConfigKeys, EveryMemberOfAnEdgeTakesPart) {
  const TensorMeta meta{{2, 3}, DType::kFloat32};
  expect_all_take_part(EdgeSpec{meta}, [](EdgeSpec& edge, const auto& visit) {
    auto& [tensor, backward, consumer_saves, producer_keeps, may_replay,
           overhead_s, forward_exposed, backward_exposed, cast_from, may_keep,
           of_parameter] = edge;
    kVisitAll(visit, tensor, backward, consumer_saves, producer_keeps,
              may_replay, overhead_s, forward_exposed, backward_exposed,
              cast_from, may_keep, of_parameter);
  });
  const TensorMeta equal{{2, 3}, DType::kFloat32};
  EXPECT_TRUE(EdgeSpec{meta} == EdgeSpec{equal});  // by what it refers to
}

}  // namespace
}  // namespace tensoropt
