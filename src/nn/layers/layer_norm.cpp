#include <algorithm>
#include <cmath>

#include "dkfac/core/ops.h"
#include "dkfac/nn/norm_layers.h"

#include "nn/backends/backend_elementwise.h"
#include "nn/backends/backend_normalize.h"
#include "nn/backends/checks.h"
#include "nn/backends/dtype.h"
#include "nn/backends/norm_shape.h"

namespace dkfac::nn {

LayerNorm::LayerNorm(std::int64_t features, double epsilon)
    : NormalizingLayer(features), epsilon_(epsilon) {
  DKFAC_CHECK(features > 0, "[layer_norm] features is ", features, "; it must be > 0");
  DKFAC_CHECK(epsilon > 0 && std::isfinite(epsilon), "[layer_norm] epsilon is ", epsilon,
              "; it must be > 0 and finite");
  parameters_.push_back({"weight", Role::norm_scale, Shape{features}, {}, {}});
  parameters_.push_back({"bias", Role::norm_shift, Shape{features}, {}, {}});
}

std::string LayerNorm::describe() const { return detail::concat("LayerNorm ", channels_); }

Shape LayerNorm::output_shape(const Shape& input) const {
  DKFAC_CHECK(input.ndim() >= 2 && input[input.ndim() - 1] == channels_, "[layer_norm] '", name_,
              "' takes [n, ", channels_, "] or [n, ..., ", channels_, "] but the input is ", input,
              "; make their features equal");
  return input;
}

/// Mean and inverse deviation of each row. Scratch: sums of the gradient, per part or per row.
LayerCost LayerNorm::cost(const Shape& input, DType compute) const {
  constexpr std::int64_t kParts = 16;  // As in cpu/layer_norm.cpp.
  const std::int64_t rows = input.numel() / channels_;
  const std::int64_t sums = 2 * std::max(kParts * channels_, rows);
  return {.statistics = static_cast<std::size_t>(2 * rows) * size_of(compute_dtype(compute)),
          .scratch = static_cast<std::size_t>(sums) * sizeof(double)};
}

ConstTensorView LayerNorm::rows_of(ConstTensorView x) const {
  return x.reshape(Shape{x.numel() / channels_, channels_});
}

ConstTensorView LayerNorm::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready("layer_norm", *this, ctx, x);
  input_ = mode == Mode::train ? x : ConstTensorView{};
  const TensorView y = output_memory(ctx, mode, output_, shape, x.dtype());
  const ConstTensorView rows = rows_of(x);
  const Shape per_row{rows.dim(0)};
  const DType dtype = compute_dtype(x.dtype());
  Scratch scratch(ctx);
  const auto statistic = [&](Tensor& own) {
    return mode == Mode::train ? ensure(ctx, own, per_row, dtype) : scratch.take(per_row, dtype);
  };
  kernels::normalize_rows(ctx, epsilon_, rows, parameters_[0].value, parameters_[1].value,
                          statistic(mean_), statistic(inv_std_), y.reshape(rows.shape()));
  return y;
}

ConstTensorView LayerNorm::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  check_grad("layer_norm", *this, !input_.empty(), grad_output, input_.shape(), input_.dtype());
  const ConstTensorView x = rows_of(input_), dy = rows_of(grad_output);
  // Not reallocated: they have the size of the forward pass.
  const auto statistic = [&](Tensor& own) {
    return ensure(ctx, own, Shape{x.dim(0)}, compute_dtype(x.dtype()));
  };
  const ConstTensorView mean = statistic(mean_), inv_std = statistic(inv_std_);
  if (observer_ != nullptr && observer_->wants_normalization(*this))
    observer_->on_normalization(*this, input_, mean, inv_std, grad_output);
  if (wants_gradients()) {
    kernels::row_norm_gradients(ctx, x, mean, inv_std, dy, parameters_[0].grad,
                                parameters_[1].grad);
    if (observer_ != nullptr) observer_->on_gradients(*this);
  }
  if (need == InputGrad::skipped) return {};
  const TensorView dx = lend(ctx, input_grad_, input_.shape(), input_.dtype());
  kernels::normalize_rows_backward(ctx, x, parameters_[0].value, mean, inv_std, dy,
                                   dx.reshape(dy.shape()));
  return dx;
}

/// dy = gamma * (the derivative of xhat) + dgamma * xhat + dbeta.
ConstTensorView LayerNorm::tangent(Context& ctx, ConstTensorView dx) {
  check_tangent("layer_norm", *this, !input_.empty(), dx, input_.shape(), input_.dtype());
  const bool moves = has_tangents(*this);
  if (dx.empty() && !moves) return {};
  const ConstTensorView x = rows_of(input_);
  const DType dtype = compute_dtype(x.dtype());
  Scratch scratch(ctx);
  const auto statistic = [&](Tensor& own) { return ensure(ctx, own, Shape{x.dim(0)}, dtype); };
  const TensorView mean = statistic(mean_), inv_std = statistic(inv_std_);
  const TensorView result = lend_tangent(ctx, input_.shape(), input_.dtype());
  const TensorView dy = result.reshape(x.shape());
  if (moves)
    kernels::normalize_rows(ctx, epsilon_, x, parameters_[0].tangent, parameters_[1].tangent, mean,
                            inv_std, dy);
  if (dx.empty()) return result;
  const TensorView through = scratch.take(x.shape(), x.dtype());
  const TensorView ones = scratch.take(Shape{1, channels_}, dtype);
  const TensorView zeros = scratch.take(Shape{1, channels_}, dtype);
  ops::fill(ctx, ones, 1);
  ops::fill(ctx, zeros, 0);
  // The derivative of xhat is symmetric: that of the backward pass with gamma = 1.
  kernels::normalize_rows_backward(ctx, x, ones.flat(), mean, inv_std, rows_of(dx), through);
  const TensorView scaled = moves ? scratch.take(x.shape(), x.dtype()) : dy;
  const Affine gamma{{zeros, zeros}, parameters_[0].value.reshape({1, channels_}), zeros};
  kernels::normalize(ctx, {1, x.dim(0), channels_}, through, gamma, {}, {}, scaled, {});
  if (moves) kernels::add(ctx, dy, scaled, dy);
  return result;
}

}  // namespace dkfac::nn
