// The pointwise part of one step of an LSTM or GRU layer, and its derivative.
//
// Tensors are [u, b] (units, batch) and stacks of them [gates, u, b], gates in
// PyTorch's order. The input part of the gates is W_ih x + b_ih, the recurrent
// part W_hh h + b_hh.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace tensoropt {

struct CellState {
  at::Tensor h;
  at::Tensor c;  // undefined for a GRU
};

struct CellStep {
  CellState state;
  at::Tensor saved;  // [saved, u, b], what backward needs
};

struct CellGradient {
  at::Tensor input;      // of the gates' input part
  at::Tensor recurrent;  // of their recurrent part
  CellState state;       // of the state before, apart from what goes through
                         // the recurrent part; h undefined: zero
};

class RecurrentCell {
 public:
  virtual ~RecurrentCell() = default;
  virtual std::int64_t gates() const = 0;
  virtual std::int64_t saved() const = 0;
  // Whether the two parts of the gates have the same gradient.
  virtual bool same_gradient() const = 0;

  virtual CellStep forward(const at::Tensor& input, const at::Tensor& recurrent,
                           const CellState& before) const = 0;
  virtual CellGradient backward(const CellState& gradient,
                                const at::Tensor& saved,
                                const CellState& before) const = 0;
  // The c that `saved` holds; undefined for a GRU.
  virtual at::Tensor saved_c(const at::Tensor& saved) const = 0;
};

const RecurrentCell& lstm_cell();
const RecurrentCell& gru_cell();

}  // namespace tensoropt
