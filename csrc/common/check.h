// Error reporting for the whole core.
//
//   TO_CHECK(n % k == 0, "dim {} of size {} is not divisible by {}", d, n, k);
//   TO_ASSERT(config < table.num_configs(), "config {} out of range", config);
//
// TO_CHECK reports a mistake of the user (UserError, a TensorOptError in
// Python), TO_ASSERT a bug of ours (InternalError, a RuntimeError in Python).
#pragma once

#include <stdexcept>

#include "common/str_format.h"

namespace tensoropt {

class UserError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace tensoropt

#define TO_CHECK(condition, ...)                                          \
  do {                                                                    \
    if (!(condition)) {                                                   \
      throw ::tensoropt::UserError(::tensoropt::str_format(__VA_ARGS__)); \
    }                                                                     \
  } while (false)

#define TO_ASSERT(condition, ...)                               \
  do {                                                          \
    if (!(condition)) {                                         \
      throw ::tensoropt::InternalError(::tensoropt::str_format( \
          "{}:{}: {}: {}", __FILE__, __LINE__, #condition,      \
          ::tensoropt::str_format(__VA_ARGS__)));               \
    }                                                           \
  } while (false)
