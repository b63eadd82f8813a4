#include "space/known_times.h"

#include <map>
#include <utility>

namespace tensoropt {

KnownTimes::Numbered KnownTimes::numbered(const std::vector<Port>& ports,
                                          Layout Port::*part) {
  Numbered found;
  std::map<Layout, int> numbers;
  for (const Port& port : ports) {
    const auto next = static_cast<int>(numbers.size());
    const auto [entry, added] = numbers.try_emplace(port.*part, next);
    if (added) found.layouts.push_back(port.*part);
    found.number.push_back(entry->second);
  }
  return found;
}

KnownTimes::Table::Table(const SharedResharder& resharder, Numbered from,
                         Numbered to)
    : resharder_(resharder),
      from_(std::move(from)),
      to_(std::move(to)),
      times_(from_.layouts.size() * to_.layouts.size(), -1) {}

double KnownTimes::Table::time_s(int from, int to) {
  const std::size_t row = from_.number[from];
  const std::size_t column = to_.number[to];
  double& time_s = times_[row * to_.layouts.size() + column];
  if (time_s < 0) {
    const Layout& before = from_.layouts[row];
    const Layout& after = to_.layouts[column];
    time_s = before == after ? 0 : resharder_.time_s(before, after);
  }
  return time_s;
}

KnownTimes::KnownTimes(const SharedResharder& values,
                       const SharedResharder& gradients,
                       const std::vector<Port>& sources,
                       const std::vector<Port>& targets)
    : values_(values, numbered(sources, &Port::value),
              numbered(targets, &Port::value)),
      gradients_(gradients, numbered(targets, &Port::gradient),
                 numbered(sources, &Port::gradient)) {}

ReshardTimes KnownTimes::between(int source, int target, bool backward) {
  return {values_.time_s(source, target),
          backward ? gradients_.time_s(target, source) : 0};
}

}  // namespace tensoropt
