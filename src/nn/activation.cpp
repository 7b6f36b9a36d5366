#include "dkfac/nn/layers.h"

#include "nn/checks.h"
#include "nn/cpu/elementwise.h"

namespace dkfac::nn {

ConstTensorView Relu::forward(Context& ctx, ConstTensorView x, Mode mode) {
  check_ready("relu", *this, ctx, x);
  const TensorView y = ensure(ctx, output_, x.shape(), x.dtype());
  trained_ = mode == Mode::train ? ConstTensorView(y) : ConstTensorView{};
  cpu::relu(x, y);
  return y;
}

ConstTensorView Relu::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  check_grad("relu", *this, !trained_.empty(), grad_output, trained_.shape(), trained_.dtype());
  if (need == InputGrad::skipped) return {};
  const TensorView dx = ensure(ctx, input_grad_, trained_.shape(), trained_.dtype());
  cpu::relu_backward(trained_, grad_output, dx);
  return dx;
}

}  // namespace dkfac::nn
