// What becomes of a value that backward needs. This is the one place that says
// which states there are and what they are called; a new state is a new row.
//
//   on an edge      of the value as the consumer gets it, after a reshard
//   of a relay      of the value that its consumers share
//   of an operator  of what it makes: kRemade if it runs again in backward,
//                   else kNothing, for edges and relays say what is kept
//
//   config.saved == Saved::kRemade;
//   edge_word(choice.saved);   // "before"
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tensoropt {

enum class Saved : std::int32_t {
  kNothing,    // it is not needed, or something else keeps it
  kRemade,     // what it is made of is kept, and it is made again: resharded
               // from the copy before, or computed
  kKept,       // it stays in memory
  kKeptTwice,  // on an edge: it does, and so does the copy before the reshard
};

inline constexpr std::array kAllSaved = {Saved::kNothing, Saved::kRemade,
                                         Saved::kKept, Saved::kKeptTwice};

// Which copies stay in memory on an edge: "none", "before" the reshard, "after"
// it or "both". Plans are saved so.
std::string_view edge_word(Saved saved);

// What labels of configs end with, " again" say.
std::string_view op_suffix(Saved saved);
std::string_view relay_suffix(Saved saved);

}  // namespace tensoropt
