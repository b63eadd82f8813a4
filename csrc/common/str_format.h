// Text made of values, in the language of fmt.
//
//   str_format("dim {} of size {}", dim, size)   // checked at compile time
//   str_join(shape, ", ")                        // "8, 512, 64"
//
// Only the part of fmt that checks format strings is included here: writing
// the text is in one unit, so that the files which report errors do not
// compile fmt anew each. Takes what fmt formats by itself: numbers, bools,
// characters, strings and pointers; enums are converted by the caller.
#pragma once

#if __has_include(<fmt/base.h>)
#include <fmt/base.h>
#else
#include <fmt/core.h>
#endif

#include <string>
#include <string_view>

namespace tensoropt {

// Appends `format` with its fields filled in to `text`.
void append_format(std::string& text, std::string_view format,
                   fmt::format_args args);

template <typename... Args>
std::string str_format(fmt::format_string<Args...> format, Args&&... args) {
  std::string text;
  const fmt::string_view fields = format;
  append_format(text, {fields.data(), fields.size()},
                fmt::make_format_args(args...));
  return text;
}

// The items of a range with `separator` between them.
template <typename Range>
std::string str_join(const Range& range, std::string_view separator) {
  std::string text;
  bool first = true;
  for (const auto& item : range) {
    if (!first) text += separator;
    first = false;
    append_format(text, "{}", fmt::make_format_args(item));
  }
  return text;
}

}  // namespace tensoropt
