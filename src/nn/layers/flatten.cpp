#include "dkfac/nn/layers.h"

#include "nn/backends/checks.h"

namespace dkfac::nn {

Shape Flatten::output_shape(const Shape& input) const {
  DKFAC_CHECK(input.ndim() >= 2, "[flatten] '", name_, "' takes [n, ...] but the input is ", input);
  std::int64_t features = 1;
  bool fits = true;
  for (int i = 1; i < input.ndim(); ++i)
    fits = !__builtin_mul_overflow(features, input[i], &features) && fits;
  DKFAC_CHECK(fits, "[flatten] '", name_, "': the input ", input,
              " has too many features; make it smaller");
  return Shape{input[0], features};
}

LayerCost Flatten::cost(const Shape&, DType) const { return {.is_view = true}; }

ConstTensorView Flatten::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready("flatten", *this, ctx, x);
  const ConstTensorView y = x.reshape(shape);
  trained_ = mode == Mode::train ? y : ConstTensorView{};
  input_shape_ = x.shape();
  return y;
}

ConstTensorView Flatten::backward(Context&, ConstTensorView grad_output, InputGrad need) {
  check_grad("flatten", *this, !trained_.empty(), grad_output, trained_.shape(), trained_.dtype());
  if (need == InputGrad::skipped) return {};
  return grad_output.reshape(input_shape_);
}

ConstTensorView Flatten::tangent(Context&, ConstTensorView dx) {
  check_tangent("flatten", *this, !trained_.empty(), dx, input_shape_, trained_.dtype());
  return dx.empty() ? dx : dx.reshape(trained_.shape());
}

}  // namespace dkfac::nn
