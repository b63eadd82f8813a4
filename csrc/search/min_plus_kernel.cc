#include "search/min_plus_kernel.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

// Compiled for several processors; the right one is chosen when the library is
// loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TENSOROPT_CLONES \
  __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TENSOROPT_CLONES
#endif

namespace tensoropt {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows and columns whose results stay in registers.
constexpr int kRows = 4;
constexpr int kColumns = 8;
// With fewer rows, packing the columns does not pay.
constexpr int kFewRows = 8;

using Lane = double __attribute__((vector_size(kColumns * sizeof(double))));

// kRows rows of terms times packed[inner][kColumns].
TENSOROPT_CLONES void multiply_rows(const double* terms, const double* packed,
                                    double* out, int inner, int width) {
  Lane least[kRows];
  for (int row = 0; row < kRows; ++row) {
    std::memcpy(&least[row], out + row * static_cast<long>(width),
                sizeof(Lane));
  }
  for (int x = 0; x < inner; ++x) {
    Lane line;
    std::memcpy(&line, packed + x * kColumns, sizeof(Lane));
    for (int row = 0; row < kRows; ++row) {
      const Lane value = line + terms[row * static_cast<long>(inner) + x];
      least[row] = value < least[row] ? value : least[row];
    }
  }
  for (int row = 0; row < kRows; ++row) {
    std::memcpy(out + row * static_cast<long>(width), &least[row],
                sizeof(Lane));
  }
}

void multiply_one_row(const double* terms, const double* wide, double* out,
                      const MinPlusBlock& block, int first, int count) {
  for (int x = 0; x < block.inner; ++x) {
    if (terms[x] == kInfinity) continue;
    lower(out + first, wide + x * static_cast<long>(block.width) + first,
          terms[x], count);
  }
}

}  // namespace

TENSOROPT_CLONES void lower(double* into, const double* from, double offset,
                            int count) {
  for (int i = 0; i < count; ++i) {
    const double value = offset + from[i];
    into[i] = value < into[i] ? value : into[i];
  }
}

TENSOROPT_CLONES void lower_sum(double* into, const double* a, const double* b,
                                int count) {
  for (int i = 0; i < count; ++i) {
    const double value = a[i] + b[i];
    into[i] = value < into[i] ? value : into[i];
  }
}

void multiply_min_plus(const double* terms, const double* wide, double* out,
                       const MinPlusBlock& block) {
  const auto row_of = [&](int row) {
    return terms + row * static_cast<long>(block.inner);
  };
  const auto out_of = [&](int row) {
    return out + row * static_cast<long>(block.width);
  };
  const int packed_rows =
      block.rows < kFewRows ? 0 : block.rows / kRows * kRows;
  const int packed_columns =
      packed_rows == 0 ? 0 : block.width / kColumns * kColumns;
  std::vector<double> packed;
  if (packed_columns > 0) {
    packed.resize(static_cast<std::size_t>(block.inner) * kColumns);
  }
  for (int first = 0; first < packed_columns; first += kColumns) {
    for (int x = 0; x < block.inner; ++x) {
      std::memcpy(packed.data() + x * kColumns,
                  wide + x * static_cast<long>(block.width) + first,
                  sizeof(Lane));
    }
    for (int row = 0; row < packed_rows; row += kRows) {
      multiply_rows(row_of(row), packed.data(), out_of(row) + first,
                    block.inner, block.width);
    }
  }
  // Columns that were packed are left to do in the last rows only.
  for (int row = 0; row < block.rows; ++row) {
    const int first = row < packed_rows ? packed_columns : 0;
    multiply_one_row(row_of(row), wide, out_of(row), block, first,
                     block.width - first);
  }
}

}  // namespace tensoropt
