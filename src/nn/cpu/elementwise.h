#pragma once

#include "dkfac/core/tensor_view.h"
#include "dkfac/nn/layers.h"

/// Elementwise loops over contiguous host memory, f64, f32, bf16 or f16, that core has no operation
/// for.
namespace dkfac::nn::cpu {

/// y[r,:] = row for every r; y: [rows,c] contiguous, or any shape whose last dimension is c.
/// row: of the dtype that y is computed in.
void repeat_row(ConstTensorView row, TensorView y);

/// y = x + z, equal shapes, contiguous.
void add(ConstTensorView x, ConstTensorView z, TensorView y);

/// y = factor * x, contiguous; x and y may be the same.
void scale(ConstTensorView x, double factor, TensorView y);

/// y = activation(x), contiguous; x and y may be the same. NaN stays NaN.
void activate(const Activation& activation, ConstTensorView x, TensorView y);
/// dx = dy * the derivative of the activation whose output is y; dy and dx may be the same.
void activate_backward(const Activation& activation, ConstTensorView y, ConstTensorView dy,
                       TensorView dx);

}  // namespace dkfac::nn::cpu
