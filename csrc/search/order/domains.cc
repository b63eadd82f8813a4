#include "search/order/domains.h"

#include <utility>

#include "common/check.h"
#include "problem/propagation.h"

namespace tensoropt {

Domains::Domains(const Problem& problem, const std::vector<int>& fixed) {
  Propagation propagation(problem);
  std::vector<ConfigMask> masks = propagation.all_configs();
  for (std::size_t n = 0; n < fixed.size(); ++n) {
    if (fixed[n] < 0) continue;
    ConfigMask only(masks[n].size());
    only[fixed[n]] = masks[n][fixed[n]];
    masks[n] = only;
  }
  empty_node_ = propagation.run(masks);
  for (const ConfigMask& mask : masks) {
    std::vector<int> configs;
    for (std::size_t c = 0; c < mask.size(); ++c) {
      if (mask[c]) configs.push_back(static_cast<int>(c));
    }
    node_domain_.push_back(intern(std::move(configs)));
  }
}

void Domains::check_not_empty() const {
  TO_CHECK(empty_node_.is_none(),
           "node {}: none of its configs can be combined with a config of each "
           "of its neighbours; there is no strategy",
           empty_node_);
}

int Domains::intern(std::vector<int> configs) {
  const auto [found, is_new] =
      ids_.try_emplace(configs, static_cast<int>(domains_.size()));
  if (is_new) domains_.push_back(std::move(configs));
  return found->second;
}

}  // namespace tensoropt
