#include "common/check.h"

#include <gtest/gtest.h>

namespace tensoropt {
namespace {

template <typename Error, typename Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(Check, ThrowsUserErrorWithItsMessageOnly) {
  const int size = 5;
  EXPECT_NO_THROW(TO_CHECK(size % 5 == 0, "size {}", size));
  EXPECT_EQ(message_of<UserError>(
                [&] { TO_CHECK(size % 2 == 0, "size {} is odd", size); }),
            "size 5 is odd");
}

TEST(Assert, ThrowsInternalErrorWithPlaceConditionAndMessage) {
  const int config = 7;
  EXPECT_NO_THROW(TO_ASSERT(config == 7, "config {}", config));
  const std::string message = message_of<InternalError>(
      [&] { TO_ASSERT(config < 3, "config {} out of range", config); });
  EXPECT_NE(message.find("check_test.cc:"), std::string::npos) << message;
  EXPECT_NE(message.find("config < 3: config 7 out of range"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace tensoropt
