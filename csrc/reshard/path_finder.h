// The two ways to find shortest reshard paths; resharder.h chooses and
// explains.
//
//   std::unique_ptr<PathFinder> finder = make_path_finder(costs, 4096);
//   FoundPath path = finder->find(from, to);
//
// Callable from several threads at once. Layouts that do not divide the tensor
// or have other axes throw UserError.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "reshard/move_costs.h"
#include "reshard/step.h"

namespace tensoropt {

struct FoundPath {
  Steps steps;
  double time_s = 0;
};

class PathFinder {
 public:
  PathFinder(MoveCosts costs, std::uint32_t dims)
      : costs_(std::move(costs)), dims_(dims) {}
  virtual ~PathFinder() = default;
  PathFinder(const PathFinder&) = delete;
  PathFinder& operator=(const PathFinder&) = delete;

  virtual FoundPath find(const Layout& from, const Layout& to) = 0;

  // The time of the path, if that is a lookup.
  virtual std::optional<double> time_s(const Layout& from,
                                       const Layout& to) = 0;

  // True if paths may pass all layouts.
  virtual bool is_exact() const = 0;

 protected:
  void check(const Layout& layout) const;

  const MoveCosts costs_;
  const std::uint32_t dims_;
};

// Exact if the tensor has at most `max_layouts` layouts (at most 65536) that
// split only `dims`, a bit mask.
std::unique_ptr<PathFinder> make_path_finder(MoveCosts costs, int max_layouts,
                                             std::uint32_t dims);

}  // namespace tensoropt
