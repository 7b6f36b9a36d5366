#include "dkfac/core/ops.h"
#include "dkfac/nn/layers.h"

#include "nn/checks.h"
#include "nn/cpu/elementwise.h"

namespace dkfac::nn {

Linear::Linear(std::int64_t in, std::int64_t out, bool bias) : in_(in), out_(out), bias_(bias) {
  DKFAC_CHECK(in > 0 && out > 0, "[linear] in is ", in, " and out ", out, "; both must be > 0");
  parameters_.push_back({"weight", Role::weight, Shape{out, in}, {}, {}});
  if (bias) parameters_.push_back({"bias", Role::bias, Shape{out}, {}, {}});
}

std::string Linear::describe() const {
  return detail::concat("Linear ", in_, "->", out_, bias_ ? "" : " without bias");
}

Shape Linear::output_shape(const Shape& input) const {
  std::int64_t features = 1;
  for (int i = 1; i < input.ndim(); ++i) features *= input[i];
  DKFAC_CHECK(input.ndim() >= 2 && features == in_, "[linear] '", name_, "' takes [n, ", in_,
              "] but the input is ", input, "; make their features equal");
  return Shape{input[0], out_};
}

ConstTensorView Linear::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready("linear", *this, ctx, x);
  const ConstTensorView rows = x.reshape(Shape{shape[0], in_});
  input_ = mode == Mode::train ? rows : ConstTensorView{};
  input_shape_ = x.shape();
  if (mode == Mode::train && observer_ != nullptr) observer_->on_forward(*this, rows);

  const TensorView y = ensure(ctx, output_, shape, x.dtype());
  // The product is added to rows that hold the bias already: no second pass over y.
  if (bias_) cpu::repeat_row(parameters_[1].value, y);
  ops::gemm(ctx, ops::Trans::no, ops::Trans::yes, 1.0, rows, parameters_[0].value,
            bias_ ? 1.0 : 0.0, y);
  return y;
}

ConstTensorView Linear::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  const std::int64_t n = input_.empty() ? 0 : input_.dim(0);
  check_grad("linear", *this, !input_.empty(), grad_output, Shape{n, out_}, input_.dtype());
  if (observer_ != nullptr) observer_->on_backward(*this, grad_output);
  ops::gemm(ctx, ops::Trans::yes, ops::Trans::no, 1.0, grad_output, input_, 0.0,
            parameters_[0].grad);
  if (bias_) ops::col_sum(ctx, 1.0, grad_output, 0.0, parameters_[1].grad);
  if (observer_ != nullptr) observer_->on_gradients(*this);

  if (need == InputGrad::skipped) return {};
  const TensorView dx = ensure(ctx, input_grad_, input_.shape(), input_.dtype());
  ops::gemm(ctx, ops::Trans::no, ops::Trans::no, 1.0, grad_output, parameters_[0].value, 0.0, dx);
  return dx.reshape(input_shape_);
}

}  // namespace dkfac::nn
