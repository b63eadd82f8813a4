// tensoropt::lstm(input, h, c, w_ih, w_hh, b_ih, b_hh, batch_first, train)
//     -> (output, h_n, c_n)
// tensoropt::gru(input, h, w_ih, w_hh, b_ih, b_hh, batch_first, train)
//     -> (output, h_n)
//
// One recurrent layer of H units whose weights are seen gate by gate, [gates,
// H, i] and [gates, H, H], biases [gates, H]. They are the calls of aten::lstm
// and aten::gru on the same memory with gates stacked.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace tensoropt::recurrent_op {

namespace {

using Optional = std::optional<at::Tensor>;

// The weights that PyTorch's operators take.
std::vector<at::Tensor> stacked(const at::Tensor& w_ih, const at::Tensor& w_hh,
                                const Optional& b_ih, const Optional& b_hh) {
  TORCH_CHECK_VALUE(
      w_ih.dim() == 3 && w_hh.dim() == 3 &&
          w_ih.sizes().slice(0, 2) == w_hh.sizes().slice(0, 2),
      "a recurrent layer needs weights [gates, units, inputs] and [gates, "
      "units, units], got ",
      w_ih.sizes(), " and ", w_hh.sizes());
  TORCH_CHECK_VALUE(b_ih.has_value() == b_hh.has_value(),
                    "a recurrent layer has two biases or none");
  std::vector<at::Tensor> weights{w_ih.flatten(0, 1), w_hh.flatten(0, 1)};
  if (b_ih) {
    weights.push_back(b_ih->flatten());
    weights.push_back(b_hh->flatten());
  }
  return weights;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(
    const at::Tensor& input, const at::Tensor& h, const at::Tensor& c,
    const at::Tensor& w_ih, const at::Tensor& w_hh, const Optional& b_ih,
    const Optional& b_hh, bool batch_first, bool train) {
  return at::lstm(input, {h, c}, stacked(w_ih, w_hh, b_ih, b_hh),
                  b_ih.has_value(), /*num_layers=*/1, /*dropout=*/0, train,
                  /*bidirectional=*/false, batch_first);
}

std::tuple<at::Tensor, at::Tensor> gru(
    const at::Tensor& input, const at::Tensor& h, const at::Tensor& w_ih,
    const at::Tensor& w_hh, const Optional& b_ih, const Optional& b_hh,
    bool batch_first, bool train) {
  return at::gru(input, h, stacked(w_ih, w_hh, b_ih, b_hh), b_ih.has_value(),
                 /*num_layers=*/1, /*dropout=*/0, train,
                 /*bidirectional=*/false, batch_first);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "lstm(Tensor input, Tensor h, Tensor c, Tensor w_ih, Tensor w_hh, "
      "Tensor? b_ih, Tensor? b_hh, bool batch_first, bool train) -> "
      "(Tensor, Tensor, Tensor)",
      lstm);
  library.def(
      "gru(Tensor input, Tensor h, Tensor w_ih, Tensor w_hh, Tensor? b_ih, "
      "Tensor? b_hh, bool batch_first, bool train) -> (Tensor, Tensor)",
      gru);
}

}  // namespace tensoropt::recurrent_op
