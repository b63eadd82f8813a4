// A weighted sum of memory and time: one objective instead of two.
#pragma once

#include "search/frontier.h"

namespace tensoropt {

struct Weights {
  double memory = 0;
  double time = 0;
  double of(Point point) const {
    return memory * point.memory + time * point.time;
  }
  friend bool operator==(const Weights&, const Weights&) = default;
};

}  // namespace tensoropt
