// tensoropt::linear_sections(input, weight, bias, starts, sizes)
//
// A linear layer whose outputs are cut into sections that need not be alike,
// such as queries, keys and values of grouped heads: input [..., m, k], weight
// [rows, k] and bias [rows] give a tensor [..., sizes[i]] for each i, of the
// rows of the weight from starts[i] on. Sections of all rows, one after the
// other, are the calls of aten::linear and aten::split_with_sizes. A rank that
// has a part of each makes one product of its rows, and keeps input and weight
// for backward, as a linear layer does.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace tensoropt::linear_sections_op {

namespace {

using Bias = std::optional<at::Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor joined(const at::Tensor& rows, at::IntArrayRef starts,
                  at::IntArrayRef sizes) {
  std::vector<at::Tensor> sections;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    sections.push_back(rows.narrow(0, starts[i], sizes[i]));
  }
  return at::cat(sections, 0);
}

// The gradient of all rows, of that of the joined ones.
at::Tensor among_zeros(const at::Tensor& joined_rows, std::int64_t num_rows,
                       at::IntArrayRef starts, at::IntArrayRef sizes) {
  std::vector<std::int64_t> shape = joined_rows.sizes().vec();
  shape[0] = num_rows;
  at::Tensor all = at::zeros(shape, joined_rows.options());
  const auto sections = joined_rows.split_with_sizes(sizes, 0);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    all.narrow(0, starts[i], sizes[i]).copy_(sections[i]);
  }
  return all;
}

at::Tensor linear_of_rows(const at::Tensor& input, const at::Tensor& weight,
                          const Bias& bias, at::IntArrayRef starts,
                          at::IntArrayRef sizes) {
  Bias own_bias;
  if (bias.has_value()) own_bias = joined(*bias, starts, sizes);
  return at::linear(input, joined(weight, starts, sizes), own_bias);
}

struct LinearOfRows : torch::autograd::Function<LinearOfRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const Bias& bias,
                            at::IntArrayRef starts, at::IntArrayRef sizes) {
    context->save_for_backward({input, weight});
    context->saved_data["starts"] = starts;
    context->saved_data["sizes"] = sizes;
    context->saved_data["has_bias"] = bias.has_value();
    const at::AutoDispatchBelowADInplaceOrView guard;
    return linear_of_rows(input, weight, bias, starts, sizes);
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const auto starts = context->saved_data["starts"].toIntVector();
    const auto sizes = context->saved_data["sizes"].toIntVector();
    const auto of_all = [&](const at::Tensor& rows) {
      return among_zeros(rows, weight.size(0), starts, sizes);
    };
    variable_list result(5);
    if (context->needs_input_grad(0)) {
      result[0] = gradients[0].matmul(joined(weight, starts, sizes));
    }
    const at::Tensor flat = gradients[0].flatten(0, -2);
    if (context->needs_input_grad(1)) {
      result[1] = of_all(flat.t().mm(input.flatten(0, -2)));
    }
    if (context->saved_data["has_bias"].toBool() &&
        context->needs_input_grad(2)) {
      result[2] = of_all(flat.sum(0));
    }
    return result;
  }
};

at::Tensor linear_of_rows_autograd(const at::Tensor& input,
                                   const at::Tensor& weight, const Bias& bias,
                                   at::IntArrayRef starts,
                                   at::IntArrayRef sizes) {
  return LinearOfRows::apply(input, weight, bias, starts, sizes);
}

at::Tensor call_linear_of_rows(const at::Tensor& input,
                               const at::Tensor& weight, const Bias& bias,
                               at::IntArrayRef starts, at::IntArrayRef sizes) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("tensoropt::_linear_of_rows", "")
          .typed<decltype(linear_of_rows)>();
  return op.call(input, weight, bias, starts, sizes);
}

void check_operands(const at::Tensor& input, const at::Tensor& weight,
                    at::IntArrayRef starts, at::IntArrayRef sizes) {
  TORCH_CHECK_VALUE(
      input.dim() > 1 && weight.dim() == 2 && input.size(-1) == weight.size(1),
      "linear_sections: input has to be [..., m, k] and weight "
      "[rows, k], got ",
      input.sizes(), " and ", weight.sizes());
  bool inside = !sizes.empty() && starts.size() == sizes.size();
  for (std::size_t i = 0; inside && i < sizes.size(); ++i) {
    inside = starts[i] >= 0 && sizes[i] > 0 &&
             starts[i] + sizes[i] <= weight.size(0);
  }
  TORCH_CHECK_VALUE(inside, "linear_sections: sections of ", sizes,
                    " rows that start at ", starts, ", of ", weight.size(0));
}

bool are_all_rows(std::int64_t num_rows, at::IntArrayRef starts,
                  at::IntArrayRef sizes) {
  std::int64_t next = 0;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (starts[i] != next) return false;
    next += sizes[i];
  }
  return next == num_rows;
}

std::vector<at::Tensor> linear_sections(const at::Tensor& input,
                                        const at::Tensor& weight,
                                        const Bias& bias,
                                        at::IntArrayRef starts,
                                        at::IntArrayRef sizes) {
  check_operands(input, weight, starts, sizes);
  const at::Tensor rows =
      are_all_rows(weight.size(0), starts, sizes)
          ? at::linear(input, weight, bias)
          : call_linear_of_rows(input, weight, bias, starts, sizes);
  return rows.split_with_sizes(sizes, -1);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tensoropt, library) {
  library.def(
      "linear_sections(Tensor input, Tensor weight, Tensor? bias, "
      "int[] starts, int[] sizes) -> Tensor[]",
      linear_sections);
  library.def(
      "_linear_of_rows(Tensor input, Tensor weight, Tensor? bias, "
      "int[] starts, int[] sizes) -> Tensor");
}
TORCH_LIBRARY_IMPL(tensoropt, CompositeExplicitAutograd, library) {
  library.impl("_linear_of_rows", linear_of_rows);
}
TORCH_LIBRARY_IMPL(tensoropt, Autograd, library) {
  library.impl("_linear_of_rows", linear_of_rows_autograd);
}

}  // namespace tensoropt::linear_sections_op
