#include "common/str_format.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tensoropt {
namespace {

TEST(StrFormat, FillsFields) {
  const std::string name = "q";
  EXPECT_EQ(str_format("op '{}', dim {} of {:#b}", name, 2, 5u),
            "op 'q', dim 2 of 0b101");
  EXPECT_EQ(str_format("{:.2f} {} {}", 0.125, true, 'c'), "0.12 true c");
  EXPECT_EQ(str_format("{{}}"), "{}");
}

TEST(StrJoin, PutsSeparatorsBetweenItems) {
  EXPECT_EQ(str_join(std::vector<std::int64_t>{8, 512, 64}, ", "),
            "8, 512, 64");
  EXPECT_EQ(str_join(std::vector<std::string>{"one"}, ", "), "one");
  EXPECT_EQ(str_join(std::vector<double>{}, ", "), "");
}

TEST(StrJoin, TakesWhatIsNoReference) {
  EXPECT_EQ(str_join(std::vector<bool>{true, false}, "x"), "truexfalse");
}

}  // namespace
}  // namespace tensoropt
