#include "common/id.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <unordered_set>

#include "common/str_format.h"

namespace tensoropt {
namespace {

using Cat = Id<struct CatTag>;
using Dog = Id<struct DogTag>;

template <typename A, typename B>
concept Comparable = requires(A a, B b) {
  a == b;
};
template <typename A, typename B>
concept Ordered = requires(A a, B b) {
  a < b;
};
template <typename Vector, typename Key>
concept Indexed = requires(Vector vector, Key key) {
  vector[key];
};

// A wrong kind does not compile.
static_assert(!std::is_convertible_v<Cat, Dog>);
static_assert(!std::is_constructible_v<Dog, Cat>);
static_assert(!std::is_assignable_v<Dog&, Cat>);
static_assert(!std::is_convertible_v<int, Cat>);
static_assert(std::is_constructible_v<Cat, int>);
static_assert(!std::is_invocable_v<void (*)(Cat), Dog>);
static_assert(!std::is_invocable_v<void (*)(Cat), int>);
static_assert(std::is_invocable_v<void (*)(Cat), Cat>);
static_assert(!Comparable<Cat, Dog> && Comparable<Cat, Cat>);
static_assert(!Ordered<Cat, Dog> && Ordered<Cat, Cat>);

using ByCat = IndexedVector<Cat, int>;
static_assert(Indexed<ByCat, Cat> && Indexed<const ByCat, Cat>);
static_assert(!Indexed<ByCat, Dog> && !Indexed<const ByCat, Dog>);
static_assert(!Indexed<ByCat, int> && !Indexed<const ByCat, std::size_t>);
static_assert(!std::is_convertible_v<IndexedVector<Dog, int>, ByCat>);

TEST(Id, IsANumberOfItsKind) {
  EXPECT_TRUE(Cat().is_none());
  EXPECT_FALSE(Cat(0).is_none());
  EXPECT_LT(Cat(1), Cat(2));
  EXPECT_EQ(Cat(std::size_t{3}), Cat(3));
  EXPECT_EQ(str_format("{}", Cat(7)), "7");
  const std::unordered_set<Cat> few = {Cat(1), Cat(1), Cat(2)};
  EXPECT_EQ(few.size(), 2);
}

TEST(IndexedVector, HasWhatWasPutThere) {
  IndexedVector<Cat, std::string> names(2);
  names[Cat(1)] = "tom";
  names.push_back("minka");
  EXPECT_EQ(names.size(), 3);
  EXPECT_EQ(names[Cat(0)], "");
  EXPECT_EQ(names[Cat(1)], "tom");
  EXPECT_EQ(names[Cat(2)], "minka");
  IndexedVector<Dog, bool> barks(2, true);
  barks[Dog(1)] = false;
  EXPECT_TRUE(barks[Dog(0)] && !barks[Dog(1)]);
}

}  // namespace
}  // namespace tensoropt
