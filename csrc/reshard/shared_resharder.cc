#include "reshard/shared_resharder.h"

#include <algorithm>

#include "reshard/moves.h"

namespace tensoropt {

double SharedResharder::time_s(const Layout& from, const Layout& to) const {
  const std::optional<double> together_s = shared_s(from, to);
  return together_s ? *together_s : alone_->time_s(from, to);
}

Steps SharedResharder::steps(const Layout& from, const Layout& to) const {
  if (shared_s(from, to)) return {*step_between(from, to)};
  return alone_->path(from, to).steps;
}

std::optional<double> SharedResharder::shared_s(const Layout& from,
                                                const Layout& to) const {
  if (in_bucket_ == nullptr || from == to) return std::nullopt;
  const double alone_s = alone_->time_s(from, to);  // checks the layouts
  const std::optional<Step> step = step_between(from, to);
  if (!step) return std::nullopt;
  const double excess = std::max(in_bucket_->excess(axes_by_code(from)),
                                 in_bucket_->excess(axes_by_code(to)));
  if (excess > 1 && step->kind == StepKind::kAllGather) return std::nullopt;
  const std::int64_t time_ps = in_bucket_->time_ps(*step, from.sharding_axes());
  const double together_s = static_cast<double>(time_ps) * excess * 1e-12;
  if (together_s > alone_s) return std::nullopt;
  return together_s;
}

}  // namespace tensoropt
