// Indices with a type: the index of a node does not go for that of a value.
//
//   using NodeId = Id<struct NodeTag>;
//   const NodeId node(3);             // explicit: 3 alone is no node
//   IndexedVector<NodeId, Rule> rules(count);
//   rules[node];                      // an Id of another kind does not compile
//
// An Id converts to int, for example to index a vector. Back leads an explicit
// conversion only, and none to an Id of another kind, not even to compare.
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace tensoropt {

template <typename Tag>
class Id {
 public:
  constexpr Id() = default;  // none
  template <std::integral Number>
  constexpr explicit Id(Number number) : number_(static_cast<int>(number)) {}

  constexpr operator int() const { return number_; }
  constexpr bool is_none() const { return number_ < 0; }

  constexpr bool operator==(const Id&) const = default;
  constexpr auto operator<=>(const Id&) const = default;
  template <typename Other>
  bool operator==(const Id<Other>&) const = delete;
  template <typename Other>
  auto operator<=>(const Id<Other>&) const = delete;

  friend constexpr int format_as(const Id& id) { return id.number_; }

 private:
  int number_ = -1;
};

// A vector by Id.
template <typename Key, typename T>
class IndexedVector : private std::vector<T> {
  using Base = std::vector<T>;

 public:
  using Base::assign;
  using Base::Base;
  using Base::begin;
  using Base::empty;
  using Base::end;
  using Base::push_back;
  using Base::resize;
  using Base::size;
  explicit IndexedVector(Base values) : Base(std::move(values)) {}

  decltype(auto) operator[](Key key) {
    return Base::operator[](static_cast<std::size_t>(key));
  }
  decltype(auto) operator[](Key key) const {
    return Base::operator[](static_cast<std::size_t>(key));
  }
  template <typename Other>
  void operator[](Other) const = delete;  // nor by a plain number
};

}  // namespace tensoropt

template <typename Tag>
struct std::hash<tensoropt::Id<Tag>> {
  std::size_t operator()(const tensoropt::Id<Tag>& id) const {
    return std::hash<int>()(id);
  }
};
