// The machine that strategies run on.
#pragma once

#include "comm/collective.h"

namespace tensoropt {

class OpProfile;

// Overheads of the runtime, besides kernels and collectives: seconds of a
// reshard in each pass, however small; of a collective, beyond its time between
// ranks that do nothing else; of the update of a trained parameter in a step,
// and of each byte that the update moves (0: updates are computed from the
// device's figures). Where reshards of parameters and of their gradients
// overlap with computing, a step waits for the exposed share of their times.
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
