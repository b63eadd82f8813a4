// Min-plus passes over the cells that are left, all weightings at once.
#pragma once

#include <cstdint>
#include <vector>

#include "common/workers.h"
#include "search/bounds/bounds.h"
#include "search/bounds/min_plus.h"

namespace tensoropt {

// Fills in, for the cells listed in the bounds of every table, the least cost
// in the table and the least cost of the rest (see MinPlusPass).
class SparseMinPlus {
 public:
  SparseMinPlus(const MinPlusGraph& graph, const ZoneLimits& limits,
                Workers& workers, std::vector<TableBounds>& tables);

  void run();

 private:
  // Rows of (column, rank), by ascending column.
  struct Rows {
    struct Entry {
      std::int32_t column;
      std::int32_t rank;
    };
    std::vector<std::uint32_t> first;
    std::vector<Entry> entries;
    std::span<const Entry> row(std::size_t i) const {
      return std::span(entries).subspan(first[i], first[i + 1] - first[i]);
    }
  };
  // Both operands of a product.
  struct Operands {
    Rows left;
    Rows right;
  };

  template <typename CellAt>
  static Rows make_rows(const TableBounds& table, int num_rows, int row_length,
                        CellAt&& cell_at);
  void load(int id);
  void multiply(int id);
  void push_left(int id);
  void push_right(int id);
  float* values(std::vector<float>& of, int rank) const {
    return &of[static_cast<std::size_t>(rank) * limits_.num_weights()];
  }
  // into = min(into, a + b), for all weightings
  void lower(float* into, const float* a, const float* b) const;

  const MinPlusGraph& graph_;
  const ZoneLimits& limits_;
  Workers& workers_;
  std::vector<TableBounds>& tables_;
  std::vector<Operands> operands_;  // by expression
};

}  // namespace tensoropt
