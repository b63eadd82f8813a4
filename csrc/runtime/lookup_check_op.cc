// Positions that are looked up, such as token ids: an error on all ranks where
// PyTorch has one.
//
// tensoropt::check_lookup(index, low, high, ignored, what)
//
// Throws IndexError if a number of `index` is neither in low, ..., high - 1 nor
// `ignored`. For an index that all ranks have.
//
// tensoropt::bounded_lookup(index, low, high, ignored) -> (index, range)
// tensoropt::out_of_range(ranges, lows, highs) -> count
// tensoropt::check_lookups(count, ranges, lows, highs, whats, group)
//
// For an index that ranks have parts of. A rank that threw alone would leave
// the others waiting in the next collective. So it goes on with zeros in place
// of an index that is out of range, and `range` says what was there: the
// largest number, and the bitwise complement of the smallest one. How many
// look-ups of a step are out of range is added up over the ranks
// (forward_sums_op.cc). If any is, the ranges are reduced to those of
// all ranks, and all of them throw the same IndexError.
//
// On GPUs, where reading a number would wait for the device, the check of an
// index is an assertion on the device, as PyTorch's own, and nothing is
// counted.

#include <c10/util/irange.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/collectives.h"

namespace tensoropt::lookup_check_op {

namespace {

using Ignored = std::optional<std::int64_t>;

struct Range {
  std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
  std::int64_t largest = std::numeric_limits<std::int64_t>::min();

  bool is_within(std::int64_t low, std::int64_t high) const {
    return smallest >= low && largest < high;
  }
};

Range range_of(const at::Tensor& index, Ignored ignored) {
  Range range;
  const at::Tensor numbers = index.contiguous();
  AT_DISPATCH_INTEGRAL_TYPES(numbers.scalar_type(), "lookup", [&] {
    const auto* begin = numbers.const_data_ptr<scalar_t>();
    for (const auto* it = begin; it != begin + numbers.numel(); ++it) {
      const auto number = static_cast<std::int64_t>(*it);
      if (ignored && number == *ignored) continue;
      range.smallest = std::min(range.smallest, number);
      range.largest = std::max(range.largest, number);
    }
  });
  return range;
}

// As bounded_lookup writes it.
Range range_in(const at::Tensor& numbers) {
  const auto* number = numbers.const_data_ptr<std::int64_t>();
  return {.smallest = ~number[1], .largest = number[0]};
}

void check_range(const Range& range, std::int64_t low, std::int64_t high,
                 const std::string& what) {
  TORCH_CHECK_INDEX(range.is_within(low, high), what,
                    ": index out of range: it looks up ",
                    range.smallest < low ? range.smallest : range.largest,
                    ", but there are only ", low, " to ", high - 1,
                    "; see whether the data fit the model");
}

void check_lookup(const at::Tensor& index, std::int64_t low, std::int64_t high,
                  Ignored ignored, const std::string& what) {
  check_range(range_of(index, ignored), low, high, what);
}

using Bounded = std::tuple<at::Tensor, at::Tensor>;

at::Tensor empty_range(const at::Tensor& index) {
  return at::empty({2}, index.options().dtype(at::kLong));
}

Bounded bounded_lookup(const at::Tensor& index, std::int64_t low,
                       std::int64_t high, Ignored ignored) {
  const Range range = range_of(index, ignored);
  at::Tensor numbers = empty_range(index);
  numbers.mutable_data_ptr<std::int64_t>()[0] = range.largest;
  numbers.mutable_data_ptr<std::int64_t>()[1] = ~range.smallest;
  const bool fits = range.is_within(low, high);
  return {fits ? index.alias() : at::zeros_like(index), numbers};
}

void assert_lookup(const at::Tensor& index, std::int64_t low, std::int64_t high,
                   Ignored ignored) {
  at::Tensor inside = index.ge(low).logical_and_(index.lt(high));
  if (ignored) inside.logical_or_(index.eq(*ignored));
  at::_assert_async(inside.all(), "index out of range");
}

void check_lookup_on_gpu(const at::Tensor& index, std::int64_t low,
                         std::int64_t high, Ignored ignored,
                         const std::string& /*what*/) {
  assert_lookup(index, low, high, ignored);
}

Bounded bounded_lookup_on_gpu(const at::Tensor& index, std::int64_t low,
                              std::int64_t high, Ignored ignored) {
  assert_lookup(index, low, high, ignored);
  return {index.alias(), empty_range(index)};
}

void check_lookup_meta(const at::Tensor& /*index*/, std::int64_t /*low*/,
                       std::int64_t /*high*/, Ignored /*ignored*/,
                       const std::string& /*what*/) {}

Bounded bounded_lookup_meta(const at::Tensor& index, std::int64_t /*low*/,
                            std::int64_t /*high*/, Ignored /*ignored*/) {
  return {index.alias(), empty_range(index)};
}

at::Tensor out_of_range(at::TensorList ranges, at::IntArrayRef lows,
                        at::IntArrayRef highs) {
  double count = 0;
  for (const auto i : c10::irange(ranges.size())) {
    const Range range = range_in(ranges[i]);
    if (!range.is_within(lows[i], highs[i])) ++count;
  }
  return at::scalar_tensor(count, at::kDouble);
}

void check_lookups(const at::Tensor& count, at::TensorList ranges,
                   at::IntArrayRef lows, at::IntArrayRef highs,
                   const std::vector<std::string>& whats,
                   const std::string& group) {
  if (count.item<double>() == 0) return;
  at::Tensor all = at::stack(ranges);
  all_reduce(all, find_group(group), c10d::ReduceOp::MAX);
  for (const auto i : c10::irange(whats.size())) {
    check_range(range_in(all[static_cast<std::int64_t>(i)]), lows[i], highs[i],
                whats[i]);
  }
}

at::Tensor out_of_range_meta(at::TensorList ranges, at::IntArrayRef /*lows*/,
                             at::IntArrayRef /*highs*/) {
  return at::empty({}, ranges[0].options().dtype(at::kDouble));
}

void check_lookups_meta(const at::Tensor& /*count*/, at::TensorList /*ranges*/,
                        at::IntArrayRef /*lows*/, at::IntArrayRef /*highs*/,
                        const std::vector<std::string>& /*whats*/,
                        const std::string& /*group*/) {}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "check_lookup(Tensor index, int low, int high, int? ignored, str what) "
      "-> ()");
  library.def(
      "bounded_lookup(Tensor(a) index, int low, int high, int? ignored) -> "
      "(Tensor(a), Tensor)");
  library.def(
      "out_of_range(Tensor[] ranges, int[] lows, int[] highs) -> Tensor");
  library.def(
      "check_lookups(Tensor count, Tensor[] ranges, int[] lows, int[] highs, "
      "str[] whats, str group) -> ()");
}
TORCH_LIBRARY_IMPL(tensoropt, CPU, library) {
  library.impl("check_lookup", check_lookup);
  library.impl("bounded_lookup", bounded_lookup);
  library.impl("out_of_range", out_of_range);
  library.impl("check_lookups", check_lookups);
}
TORCH_LIBRARY_IMPL(tensoropt, CUDA, library) {
  library.impl("check_lookup", check_lookup_on_gpu);
  library.impl("bounded_lookup", bounded_lookup_on_gpu);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("check_lookup", check_lookup_meta);
  library.impl("bounded_lookup", bounded_lookup_meta);
  library.impl("out_of_range", out_of_range_meta);
  library.impl("check_lookups", check_lookups_meta);
}

}  // namespace tensoropt::lookup_check_op
