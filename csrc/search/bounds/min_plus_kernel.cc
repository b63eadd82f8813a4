#include "search/bounds/min_plus_kernel.h"

#include <array>
#include <limits>

// Compiled for several processors; the right one is chosen when the library is
// loaded. Plain loops only: GCC lowers its vector types before it clones.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TENSOROPT_CLONES \
  __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TENSOROPT_CLONES
#endif

namespace tensoropt {

namespace {

// Lines that are added to one row at a time: it is loaded and stored once for
// all of them.
constexpr int kLines = 4;

template <typename Value>
[[gnu::always_inline]] inline Value least(Value a, Value b) {
  return b < a ? b : a;
}

template <typename Value>
[[gnu::always_inline]] inline void lower_each(Value* into, const Value* from,
                                              Value offset, int count) {
  for (int i = 0; i < count; ++i) into[i] = least(into[i], offset + from[i]);
}

template <typename Value>
[[gnu::always_inline]] inline void lower_each_sum(Value* into, const Value* a,
                                                  const Value* b, int count) {
  for (int i = 0; i < count; ++i) into[i] = least(into[i], a[i] + b[i]);
}

template <typename Value>
struct Lines {
  std::array<const Value*, kLines> from;
  std::array<Value, kLines> offset;
};

template <typename Value>
[[gnu::always_inline]] inline void lower_lines(Value* __restrict into,
                                               const Lines<Value>& lines,
                                               int count) {
  const auto [a, b, c, d] = lines.from;
  const auto [p, q, r, s] = lines.offset;
  for (int i = 0; i < count; ++i) {
    const Value first = least(p + a[i], q + b[i]);
    const Value second = least(r + c[i], s + d[i]);
    into[i] = least(into[i], least(first, second));
  }
}

template <typename Value>
[[gnu::always_inline]] inline void multiply(const Value* terms,
                                            const Value* wide, Value* out,
                                            const MinPlusBlock& block) {
  for (int row = 0; row < block.rows; ++row) {
    Lines<Value> lines;
    int num_lines = 0;
    for (int x = 0; x < block.inner; ++x) {
      if (terms[x] == std::numeric_limits<Value>::infinity()) continue;
      lines.from[num_lines] = wide + x * static_cast<long>(block.width);
      lines.offset[num_lines] = terms[x];
      if (++num_lines < kLines) continue;
      lower_lines(out, lines, block.width);
      num_lines = 0;
    }
    for (int i = 0; i < num_lines; ++i) {
      lower_each(out, lines.from[i], lines.offset[i], block.width);
    }
    terms += block.inner;
    out += block.width;
  }
}

}  // namespace

TENSOROPT_CLONES void lower(double* into, const double* from, double offset,
                            int count) {
  lower_each(into, from, offset, count);
}
TENSOROPT_CLONES void lower(float* into, const float* from, float offset,
                            int count) {
  lower_each(into, from, offset, count);
}

TENSOROPT_CLONES void lower_sum(double* into, const double* a, const double* b,
                                int count) {
  lower_each_sum(into, a, b, count);
}
TENSOROPT_CLONES void lower_sum(float* into, const float* a, const float* b,
                                int count) {
  lower_each_sum(into, a, b, count);
}

TENSOROPT_CLONES void multiply_min_plus(const double* terms, const double* wide,
                                        double* out,
                                        const MinPlusBlock& block) {
  multiply(terms, wide, out, block);
}
TENSOROPT_CLONES void multiply_min_plus(const float* terms, const float* wide,
                                        float* out, const MinPlusBlock& block) {
  multiply(terms, wide, out, block);
}

}  // namespace tensoropt
