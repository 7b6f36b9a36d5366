#include "nn/layers/activation.h"

#include <cmath>

#include "dkfac/nn/layers.h"

#include "nn/backends/backend_elementwise.h"
#include "nn/backends/checks.h"
#include "nn/backends/smooth.h"

namespace dkfac::nn {

void check_activation(std::string_view op, const Activation& activation) {
  DKFAC_CHECK(activation.kind != ActivationKind::celu ||
                  (activation.alpha > 0 && std::isfinite(activation.alpha)),
              "[", op, "] alpha of celu is ", activation.alpha, "; it must be > 0");
}

std::string describe(const Activation& activation) {
  switch (activation.kind) {
    case ActivationKind::none:
      return "";
    case ActivationKind::relu:
      return "ReLU";
    case ActivationKind::celu:
      return detail::concat("CELU ", activation.alpha);
  }
  return "";
}

ConstTensorView Relu::forward(Context& ctx, ConstTensorView x, Mode mode) {
  check_ready("relu", *this, ctx, x);
  const TensorView y = output_memory(ctx, mode, output_, x.shape(), x.dtype());
  trained_ = mode == Mode::train ? ConstTensorView(y) : ConstTensorView{};
  kernels::activate(ctx, {ActivationKind::relu}, x, y);
  return y;
}

ConstTensorView Relu::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  check_grad("relu", *this, !trained_.empty(), grad_output, trained_.shape(), trained_.dtype());
  if (need == InputGrad::skipped) return {};
  const TensorView dx = lend(ctx, input_grad_, trained_.shape(), trained_.dtype());
  kernels::activate_backward(ctx, {ActivationKind::relu}, trained_, grad_output, dx);
  return dx;
}

ConstTensorView Relu::tangent(Context& ctx, ConstTensorView dx) {
  check_tangent("relu", *this, !trained_.empty(), dx, trained_.shape(), trained_.dtype());
  if (dx.empty()) return {};
  const TensorView dy = lend_tangent(ctx, trained_.shape(), trained_.dtype());
  kernels::activate_backward(ctx, {ActivationKind::relu}, trained_, dx, dy);
  return dy;
}

Celu::Celu(double alpha) : alpha_(alpha) {
  check_activation("celu", {ActivationKind::celu, alpha});
}

std::string Celu::describe() const { return nn::describe({ActivationKind::celu, alpha_}); }

ConstTensorView Celu::forward(Context& ctx, ConstTensorView x, Mode mode) {
  check_ready("celu", *this, ctx, x);
  const TensorView y = output_memory(ctx, mode, output_, x.shape(), x.dtype());
  trained_ = mode == Mode::train ? ConstTensorView(y) : ConstTensorView{};
  kernels::activate(ctx, {ActivationKind::celu, alpha_}, x, y);
  return y;
}

ConstTensorView Celu::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  check_grad("celu", *this, !trained_.empty(), grad_output, trained_.shape(), trained_.dtype());
  if (need == InputGrad::skipped) return {};
  const TensorView dx = lend(ctx, input_grad_, trained_.shape(), trained_.dtype());
  kernels::activate_backward(ctx, {ActivationKind::celu, alpha_}, trained_, grad_output, dx);
  return dx;
}

ConstTensorView Celu::tangent(Context& ctx, ConstTensorView dx) {
  check_tangent("celu", *this, !trained_.empty(), dx, trained_.shape(), trained_.dtype());
  if (dx.empty()) return {};
  const TensorView dy = lend_tangent(ctx, trained_.shape(), trained_.dtype());
  kernels::activate_backward(ctx, {ActivationKind::celu, alpha_}, trained_, dx, dy);
  return dy;
}

std::string Smooth::describe() const {
  switch (kind_) {
    case SmoothKind::tanh:
      return "Tanh";
    case SmoothKind::sigmoid:
      return "Sigmoid";
    case SmoothKind::gelu:
      return "GELU";
    case SmoothKind::silu:
      return "SiLU";
  }
  return "";
}

ConstTensorView Smooth::forward(Context& ctx, ConstTensorView x, Mode mode) {
  check_ready("smooth", *this, ctx, x);
  const TensorView y = output_memory(ctx, mode, output_, x.shape(), x.dtype());
  kernels::smooth(ctx, kind_, x, y);
  if (mode != Mode::train) {
    kept_ = {};
  } else {
    kept_ = keeps_output(kind_) ? ConstTensorView(y) : x;
  }
  return y;
}

ConstTensorView Smooth::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  check_grad("smooth", *this, !kept_.empty(), grad_output, kept_.shape(), kept_.dtype());
  if (need == InputGrad::skipped) return {};
  const TensorView dx = lend(ctx, input_grad_, kept_.shape(), kept_.dtype());
  kernels::smooth_backward(ctx, kind_, kept_, grad_output, dx);
  return dx;
}

ConstTensorView Smooth::tangent(Context& ctx, ConstTensorView dx) {
  check_tangent("smooth", *this, !kept_.empty(), dx, kept_.shape(), kept_.dtype());
  if (dx.empty()) return {};
  const TensorView dy = lend_tangent(ctx, kept_.shape(), kept_.dtype());
  kernels::smooth_backward(ctx, kind_, kept_, dx, dy);
  return dy;
}

std::string Scale::describe() const { return detail::concat("Scale by ", factor_); }

ConstTensorView Scale::forward(Context& ctx, ConstTensorView x, Mode mode) {
  check_ready("scale", *this, ctx, x);
  const TensorView y = output_memory(ctx, mode, output_, x.shape(), x.dtype());
  kernels::scale(ctx, x, factor_, y);
  return y;
}

ConstTensorView Scale::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  check_ready("scale", *this, ctx, grad_output);
  if (need == InputGrad::skipped) return {};
  const TensorView dx = lend(ctx, input_grad_, grad_output.shape(), grad_output.dtype());
  kernels::scale(ctx, grad_output, factor_, dx);
  return dx;
}

ConstTensorView Scale::tangent(Context& ctx, ConstTensorView dx) {
  if (dx.empty()) return {};
  check_ready("scale", *this, ctx, dx);
  const TensorView dy = lend_tangent(ctx, dx.shape(), dx.dtype());
  kernels::scale(ctx, dx, factor_, dy);
  return dy;
}

}  // namespace dkfac::nn
