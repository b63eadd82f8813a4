#include "runtime/recurrent_cell.h"

namespace tensoropt {

namespace {

using at::sigmoid_backward;  // of the gradient and the result
using at::tanh_backward;

// c' = f c + i g, h' = o tanh(c'); gates i, f, g, o.
class Lstm : public RecurrentCell {
 public:
  std::int64_t gates() const override { return 4; }
  std::int64_t saved() const override { return 5; }
  bool same_gradient() const override { return true; }

  CellStep forward(const at::Tensor& input, const at::Tensor& recurrent,
                   const CellState& before) const override {
    const at::Tensor sum = input + recurrent;
    const at::Tensor i = sum[0].sigmoid();
    const at::Tensor f = sum[1].sigmoid();
    const at::Tensor g = sum[2].tanh();
    const at::Tensor o = sum[3].sigmoid();
    const at::Tensor c = at::addcmul(f * before.c, i, g);
    return {{o * c.tanh(), c}, at::stack({i, f, g, o, c})};
  }

  CellGradient backward(const CellState& gradient, const at::Tensor& saved,
                        const CellState& before) const override {
    const at::Tensor i = saved[0];
    const at::Tensor f = saved[1];
    const at::Tensor g = saved[2];
    const at::Tensor o = saved[3];
    const at::Tensor squashed = saved[4].tanh();
    const at::Tensor c = gradient.c + tanh_backward(gradient.h * o, squashed);
    const at::Tensor sum = at::stack(
        {sigmoid_backward(c * g, i), sigmoid_backward(c * before.c, f),
         tanh_backward(c * i, g), sigmoid_backward(gradient.h * squashed, o)});
    return {sum, sum, {at::Tensor(), c * f}};
  }

  at::Tensor saved_c(const at::Tensor& saved) const override {
    return saved[4];
  }
};

// n = tanh(n_x + r n_h), h' = n + z (h - n); gates r, z, n.
class Gru : public RecurrentCell {
 public:
  std::int64_t gates() const override { return 3; }
  std::int64_t saved() const override { return 4; }
  bool same_gradient() const override { return false; }

  CellStep forward(const at::Tensor& input, const at::Tensor& recurrent,
                   const CellState& before) const override {
    const at::Tensor r = (input[0] + recurrent[0]).sigmoid();
    const at::Tensor z = (input[1] + recurrent[1]).sigmoid();
    const at::Tensor n = at::addcmul(input[2], r, recurrent[2]).tanh();
    return {{at::addcmul(n, z, before.h - n), at::Tensor()},
            at::stack({r, z, n, recurrent[2]})};
  }

  CellGradient backward(const CellState& gradient, const at::Tensor& saved,
                        const CellState& before) const override {
    const at::Tensor r = saved[0];
    const at::Tensor z = saved[1];
    const at::Tensor n = saved[2];
    const at::Tensor new_z = sigmoid_backward(gradient.h * (before.h - n), z);
    const at::Tensor new_n = tanh_backward(gradient.h * (1 - z), n);
    const at::Tensor new_r = sigmoid_backward(new_n * saved[3], r);
    return {at::stack({new_r, new_z, new_n}),
            at::stack({new_r, new_z, new_n * r}),
            {gradient.h * z, at::Tensor()}};
  }

  at::Tensor saved_c(const at::Tensor& /*saved*/) const override { return {}; }
};

}  // namespace

const RecurrentCell& lstm_cell() {
  static const Lstm cell;
  return cell;
}

const RecurrentCell& gru_cell() {
  static const Gru cell;
  return cell;
}

}  // namespace tensoropt
