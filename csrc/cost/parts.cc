#include "cost/parts.h"

#include "common/check.h"

namespace tensoropt {

namespace {

// A sum that is added to is read and written, what is added is read.
constexpr double kAdditionTraffic = 3;

}  // namespace

Projection::Projection(const StepShape& shape, const Device& device)
    : shape_(shape),
      addition_s_per_byte_(kAdditionTraffic / device.copy_bytes_per_s()) {
  TO_CHECK(shape.in_flight >= 1 && shape.in_flight <= shape.micro_batches,
           "in_flight = {} of {} micro-batches, it must be >= 1 and at most "
           "that",
           shape.in_flight, shape.micro_batches);
}

}  // namespace tensoropt
