#include "cost/saved.h"

#include <cstddef>

namespace tensoropt {

namespace {

struct Words {
  std::string_view edge;
  std::string_view op;
  std::string_view relay;
};

// By state.
constexpr std::array<Words, kAllSaved.size()> kWords = {{
    {"none", "", ""},
    {"before", " again", " recomputed"},
    {"after", "", " kept"},
    {"both", "", " kept twice"},
}};

const Words& words_of(Saved saved) {
  return kWords[static_cast<std::size_t>(saved)];
}

}  // namespace

std::string_view edge_word(Saved saved) { return words_of(saved).edge; }

std::string_view op_suffix(Saved saved) { return words_of(saved).op; }

std::string_view relay_suffix(Saved saved) { return words_of(saved).relay; }

}  // namespace tensoropt
