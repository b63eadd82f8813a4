// Positions that are looked up, such as token ids: an error on all ranks where
// PyTorch has one.
//
// tensoropt::check_lookup(index, low, high, ignored, what)
//
// Throws IndexError if a number of `index` is neither in low, ..., high - 1 nor
// `ignored`. For an index that all ranks have.
//
// tensoropt::bounded_lookup(index, low, high, ignored) -> (index, range)
// tensoropt::LookupAgreement()
// tensoropt::begin_lookup_agreement(ranges, agreement, group)
// tensoropt::end_lookup_agreement(ranges, agreement, lows, highs, whats)
//
// For an index that ranks have parts of. A rank that threw alone would leave
// the others waiting in the next collective. So it goes on with zeros in place
// of an index that is out of range, and `range` says what was there: the
// largest number, and the bitwise complement of the smallest one. The ranges of
// all look-ups of a step are reduced to those of all ranks, while these
// compute; then all of them throw the same IndexError.
//
// On GPUs, where reading a number would wait for the device, either is an
// assertion on the device, as PyTorch's own, and nothing is exchanged.

#include <torch/custom_class.h>
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

// The exchange of one step.
class LookupAgreement : public torch::CustomClassHolder {
 public:
  void begin(at::TensorList ranges, const std::string& group) {
    started_ = start_all_reduce(at::stack(ranges), find_group(group),
                                c10d::ReduceOp::MAX);
  }

  // [look-ups, 2], of all ranks.
  at::Tensor end() {
    TORCH_CHECK(started_ || ranges_.defined(),
                "end_lookup_agreement comes after begin_lookup_agreement");
    if (started_) ranges_ = started_->wait();
    started_.reset();
    return ranges_;
  }

 private:
  std::optional<Started> started_;
  at::Tensor ranges_;
};

using Agreement = c10::intrusive_ptr<LookupAgreement>;

void begin_agreement(at::TensorList ranges, const Agreement& agreement,
                     const std::string& group) {
  agreement->begin(ranges, group);
}

void end_agreement(at::TensorList /*ranges*/, const Agreement& agreement,
                   at::IntArrayRef lows, at::IntArrayRef highs,
                   const std::vector<std::string>& whats) {
  const at::Tensor all = agreement->end();
  const auto* number = all.const_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < whats.size(); ++i) {
    const Range range{.smallest = ~number[2 * i + 1], .largest = number[2 * i]};
    check_range(range, lows[i], highs[i], whats[i]);
  }
}

void begin_nothing(at::TensorList /*ranges*/, const Agreement& /*agreement*/,
                   const std::string& /*group*/) {}

void end_nothing(at::TensorList /*ranges*/, const Agreement& /*agreement*/,
                 at::IntArrayRef /*lows*/, at::IntArrayRef /*highs*/,
                 const std::vector<std::string>& /*whats*/) {}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.class_<LookupAgreement>("LookupAgreement").def(torch::init<>());
  library.def(
      "check_lookup(Tensor index, int low, int high, int? ignored, str what) "
      "-> ()");
  library.def(
      "bounded_lookup(Tensor(a) index, int low, int high, int? ignored) -> "
      "(Tensor(a), Tensor)");
  library.def(
      "begin_lookup_agreement(Tensor[] ranges, "
      "__torch__.torch.classes.tensoropt.LookupAgreement agreement, "
      "str group) -> ()");
  library.def(
      "end_lookup_agreement(Tensor[] ranges, "
      "__torch__.torch.classes.tensoropt.LookupAgreement agreement, "
      "int[] lows, int[] highs, str[] whats) -> ()");
}
TORCH_LIBRARY_IMPL(tensoropt, CPU, library) {
  library.impl("check_lookup", check_lookup);
  library.impl("bounded_lookup", bounded_lookup);
  library.impl("begin_lookup_agreement", begin_agreement);
  library.impl("end_lookup_agreement", end_agreement);
}
TORCH_LIBRARY_IMPL(tensoropt, CUDA, library) {
  library.impl("check_lookup", check_lookup_on_gpu);
  library.impl("bounded_lookup", bounded_lookup_on_gpu);
  library.impl("begin_lookup_agreement", begin_nothing);
  library.impl("end_lookup_agreement", end_nothing);
}
TORCH_LIBRARY_IMPL(tensoropt, Meta, library) {
  library.impl("check_lookup", check_lookup_meta);
  library.impl("bounded_lookup", bounded_lookup_meta);
  library.impl("begin_lookup_agreement", begin_nothing);
  library.impl("end_lookup_agreement", end_nothing);
}

}  // namespace tensoropt::lookup_check_op
