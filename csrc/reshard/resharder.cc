#include "reshard/resharder.h"

#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "common/hash.h"
#include "reshard/path_finder.h"

namespace tensoropt {

namespace {

using LayoutPair = std::pair<Layout, Layout>;

struct HashPair {
  std::size_t operator()(const LayoutPair& pair) const {
    return hash_combine(pair.first.hash(), pair.second.hash());
  }
};

}  // namespace

// The paths that were asked for. Nodes of the map do not move, so references
// to paths last.
struct TensorResharder::Cache {
  std::mutex mutex;
  std::unordered_map<LayoutPair, Path, HashPair> paths;
};

TensorResharder::TensorResharder(const Mesh& mesh,
                                 const CollectiveModel& collectives,
                                 const Device& device, const Shape& shape,
                                 std::int64_t item_size, int max_layouts,
                                 DimSet dims, DimSet uneven)
    : finder_(make_path_finder(
          MoveCosts(mesh, collectives, device, shape, item_size, uneven),
          max_layouts, dims)),
      cache_(std::make_unique<Cache>()) {}

TensorResharder::TensorResharder(TensorResharder&&) noexcept = default;
TensorResharder& TensorResharder::operator=(TensorResharder&&) noexcept =
    default;
TensorResharder::~TensorResharder() = default;

const TensorResharder::Path& TensorResharder::path(const Layout& from,
                                                   const Layout& to) const {
  const LayoutPair pair{from, to};
  {
    const std::lock_guard<std::mutex> lock(cache_->mutex);
    const auto found = cache_->paths.find(pair);
    if (found != cache_->paths.end()) return found->second;
  }
  // Threads that need one path at once all find it; the first is kept.
  FoundPath found = finder_->find(from, to);
  const std::lock_guard<std::mutex> lock(cache_->mutex);
  return cache_->paths
      .try_emplace(pair, Path{std::move(found.steps), found.time_s})
      .first->second;
}

double TensorResharder::time_s(const Layout& from, const Layout& to) const {
  const std::optional<double> time_s = finder_->time_s(from, to);
  return time_s ? *time_s : path(from, to).time_s;
}

bool TensorResharder::is_exact() const { return finder_->is_exact(); }

}  // namespace tensoropt
