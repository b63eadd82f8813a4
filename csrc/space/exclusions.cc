#include "space/exclusions.h"

#include "common/check.h"

namespace tensoropt {

std::string_view to_string(ExclusionReason reason) {
  switch (reason) {
    case ExclusionReason::kConstant:
      return "constant";
    case ExclusionReason::kIdleDim:
      return "idle dim";
    case ExclusionReason::kIdleSum:
      return "idle sum";
    case ExclusionReason::kSpatial:
      return "spatial";
  }
  TO_ASSERT(false, "there is no such reason");
}

}  // namespace tensoropt
