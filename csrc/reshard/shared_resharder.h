// The fastest way to reshard a parameter, or its gradient, where one collective
// may serve several of them.
//
//   const BucketedCollectives together(collectives, {Collective::kAllGather},
//                                      /*bucket_bytes=*/1 << 22);
//   const MoveCosts in_bucket(mesh, together, device, shape, item_size);
//   SharedResharder values(resharder, &in_bucket);
//   double s = values.time_s(from, to);
//
// What is a single collective takes its share of a bucket's time. All other
// programs run by themselves and take what they take alone, and so do gathers
// of parts that differ in size.
// A handle: what it was made of must outlive it. Equal ones give equal times.
#pragma once

#include <optional>

#include "reshard/move_costs.h"
#include "reshard/resharder.h"

namespace tensoropt {

class SharedResharder {
 public:
  // `in_bucket` are the times of moves in a bucket; null: none is shared.
  SharedResharder(const TensorResharder& alone,
                  const MoveCosts* in_bucket = nullptr)
      : alone_(&alone), in_bucket_(in_bucket) {}

  // Throws UserError if a layout does not divide the tensor.
  double time_s(const Layout& from, const Layout& to) const;
  Steps steps(const Layout& from, const Layout& to) const;

  auto operator<=>(const SharedResharder&) const = default;

 private:
  // The time in a bucket, if the one step between the layouts is no slower
  // there than the path by itself.
  std::optional<double> shared_s(const Layout& from, const Layout& to) const;

  const TensorResharder* alone_;
  const MoveCosts* in_bucket_;
};

}  // namespace tensoropt
