// The exchange between blocks of gate rows and the gates of a rank's units.
//
// Experts with gates make two rows for each of their H inner units: all units
// of the first gate, then all of the second. Cut into blocks for `size` ranks,
// rank r holds `gates` consecutive pieces of H / size rows, and piece q of all
// belongs to gate q / size of the units of rank q % size. What comes after
// needs all gates of the same units:
//
//   GateExchange exchange(group, 2);
//   at::Tensor units = exchange.to_units(rows);    // both [2, H / size, ...]
//   at::Tensor again = exchange.to_rows(units);    // equal to rows
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "runtime/collectives.h"

namespace tensoropt {

class GateExchange {
 public:
  GateExchange(Group group, std::int64_t gates);

  at::Tensor to_units(const at::Tensor& rows) const;
  at::Tensor to_rows(const at::Tensor& units) const;

 private:
  Group group_;
  std::vector<std::int64_t> by_owner_;   // this rank's pieces, by owner
  std::vector<std::int64_t> in_owners_;  // inverse of by_owner_
  std::vector<std::int64_t> owners_;     // by rank: pieces here of its units
  std::vector<std::int64_t> holders_;    // by rank: pieces there of our units
};

}  // namespace tensoropt
