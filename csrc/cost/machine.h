// What strategies run on.
#pragma once

#include "comm/collective.h"

namespace tensoropt {

class OpProfile;

// What the runtime takes besides kernels and collectives: of one reshard in
// each pass, however small; of one collective, in addition to what it takes
// between ranks that do nothing else; of one trained parameter in a step, with
// its update, and more for each byte that the update moves. Without the last,
// updates are computed from the device's figures. Of reshards of parameters and
// of their gradients a step waits for a share only, if they run beside
// computing.
struct RuntimeOverheads {
  double reshard_s = 0;
  double collective_s = 0;
  double parameter_s = 0;
  double update_s_per_byte = 0;
  double exposed_parameters = 1;
  double exposed_gradients = 1;
};

// Referenced objects must outlive whatever is built on the machine.
struct Machine {
  const Mesh& mesh;
  const Device& device;
  const CollectiveModel& collectives;
  const OpProfile* operators = nullptr;  // measured ones, if there are any
  RuntimeOverheads overheads = {};
};

}  // namespace tensoropt
