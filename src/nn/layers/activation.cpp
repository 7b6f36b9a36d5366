#include "nn/layers/activation.h"

#include <array>
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
  if (activation.kind == ActivationKind::none) return "";
  return activation.kind == ActivationKind::relu ? "ReLU"
                                                 : detail::concat("CELU ", activation.alpha);
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
  static constexpr std::array kNames{"Tanh", "Sigmoid", "GELU", "SiLU"};
  return kNames.at(static_cast<std::size_t>(kind_));
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
