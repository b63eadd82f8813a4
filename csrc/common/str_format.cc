// The one unit which compiles fmt itself.
#define FMT_HEADER_ONLY
#include "common/str_format.h"

#include <fmt/format.h>

#include <iterator>

namespace tensoropt {

void append_format(std::string& text, std::string_view format,
                   fmt::format_args args) {
  fmt::vformat_to(std::back_inserter(text),
                  fmt::string_view(format.data(), format.size()), args);
}

}  // namespace tensoropt
