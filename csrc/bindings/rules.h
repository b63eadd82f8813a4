// The table of rules that a captured model was lowered with.
#pragma once

#include <memory>

#include "rules/registry.h"

namespace tensoropt {

struct Rules {
  std::shared_ptr<const Registry> registry;
};

}  // namespace tensoropt
