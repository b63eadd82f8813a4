// Measured times of operators, and predictions for others from them.
//
//   OpProfile profile(samples, device);
//   OpEstimate estimate = profile.estimate(call);   // of a LocalCall
//
// A call that was measured takes what was measured. Another one takes the
// roofline, scaled as the nearest measured calls of its family (at most
// kNeighbours) differ from theirs: the mean of the logarithms, weighted by the
// inverse square of the distance between logarithms of FLOPs and bytes. Without
// any it is the roofline. Deterministic; estimates may be made by several
// threads at once. O(samples of the family) for each.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "cost/local_call.h"

namespace tensoropt {

struct OpSample {
  std::string key;
  std::string family;
  OpWork work;
  PassTimes times;
};

enum class EstimateSource { kMeasured, kNeighbours, kRoofline };

std::string_view to_string(EstimateSource source);

// `error` is relative: 0 if measured; else the median error of the same
// prediction for the measured calls of the family, each left out in turn;
// negative if it is unknown.
struct OpEstimate {
  PassTimes times;
  EstimateSource source = EstimateSource::kRoofline;
  double error = -1;
};

class OpProfile {
 public:
  static constexpr std::size_t kNeighbours = 3;

  // Throws UserError for equal keys, and for times that are not positive and
  // finite (backward may be 0).
  OpProfile(const std::vector<OpSample>& samples, const Device& device);

  OpEstimate estimate(const LocalCall& call) const;

 private:
  struct Known {
    double log_flops;
    double log_bytes;
    PassTimes base;   // the roofline
    PassTimes times;  // measured
  };
  struct Family {
    std::vector<Known> known;
    double error = -1;
  };

  Known known_of(const OpWork& work, const PassTimes& times) const;
  static PassTimes scaled(const Family& family, const Known& call,
                          std::size_t left_out);
  static double leave_one_out(const Family& family);

  Device device_;
  std::unordered_map<std::string, PassTimes> measured_;
  std::unordered_map<std::string, Family> families_;
};

}  // namespace tensoropt
