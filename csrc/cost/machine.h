// What strategies run on.
#pragma once

#include "comm/collective.h"

namespace tensoropt {

// Referenced objects must outlive whatever is built on the machine.
struct Machine {
  const Mesh& mesh;
  const Device& device;
  const CollectiveModel& collectives;
};

}  // namespace tensoropt
