#include "nn/layers/activation.h"

#include <cmath>

#include "dkfac/nn/layers.h"

#include "nn/backends/backend_elementwise.h"
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

void Relu::compute(Context& ctx, ConstTensorView x, TensorView y) {
  kernels::activate(ctx, {ActivationKind::relu}, x, y);
}

void Relu::compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) {
  kernels::activate_backward(ctx, {ActivationKind::relu}, trained_, dy, dx);
}

Celu::Celu(double alpha) : MapLayer("celu"), activation_{ActivationKind::celu, alpha} {
  check_activation("celu", activation_);
}

std::string Celu::describe() const { return nn::describe(activation_); }

void Celu::compute(Context& ctx, ConstTensorView x, TensorView y) {
  kernels::activate(ctx, activation_, x, y);
}

void Celu::compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) {
  kernels::activate_backward(ctx, activation_, trained_, dy, dx);
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

void Smooth::compute(Context& ctx, ConstTensorView x, TensorView y) {
  kernels::smooth(ctx, kind_, x, y);
}

void Smooth::compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) {
  kernels::smooth_backward(ctx, kind_, keeps_output(kind_) ? trained_ : input_, dy, dx);
}

std::string Scale::describe() const { return detail::concat("Scale by ", factor_); }

void Scale::compute(Context& ctx, ConstTensorView x, TensorView y) {
  kernels::scale(ctx, x, factor_, y);
}

void Scale::compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) {
  kernels::scale(ctx, dy, factor_, dx);
}

}  // namespace dkfac::nn
