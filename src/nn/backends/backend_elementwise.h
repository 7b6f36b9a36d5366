#pragma once

#include "dkfac/core/tensor_view.h"
#include "dkfac/nn/layers.h"

#include "core/shared/kernel.h"
#include "nn/backends/pool_shape.h"

/// Kernels of elementwise operations beyond those of core. Views are contiguous, of one dtype (f64,
/// f32, bf16 or f16) unless said otherwise, and not empty.
namespace dkfac::nn {

/// y[r,:] = row for every r; y: [rows,c], or any shape whose last dimension is c. row: of the dtype
/// that y is computed in.
DKFAC_KERNEL(void, repeat_row, ConstTensorView row, TensorView y);
/// sums[j] = the sum of x[r,j] over all rows, added in f64. x: [rows,c], or any shape whose last
/// dimension is c. sums: of the dtype that x is computed in.
DKFAC_KERNEL(void, sum_rows, ConstTensorView x, TensorView sums);
/// y = x + z, equal shapes; y may be one of them.
DKFAC_KERNEL(void, add, ConstTensorView x, ConstTensorView z, TensorView y);
/// y = factor * x; x and y may be the same.
DKFAC_KERNEL(void, scale, ConstTensorView x, double factor, TensorView y);
/// y = activation(x); x and y may be the same. NaN stays NaN.
DKFAC_KERNEL(void, activate, const Activation& activation, ConstTensorView x, TensorView y);
/// dx = dy * the derivative of the activation whose output is y; dy and dx may be the same.
DKFAC_KERNEL(void, activate_backward, const Activation& activation, ConstTensorView y,
             ConstTensorView dy, TensorView dx);
/// y = the smooth activation of x; x and y may be the same.
DKFAC_KERNEL(void, smooth, SmoothKind kind, ConstTensorView x, TensorView y);
/// dx = dy * its derivative, from its output or its input (keeps_output()); dy and dx may be the
/// same.
DKFAC_KERNEL(void, smooth_backward, SmoothKind kind, ConstTensorView kept, ConstTensorView dy,
             TensorView dx);
/// average += weight * (value - average), f64 or f32. In this form a constant keeps its bits.
DKFAC_KERNEL(void, mix, double weight, ConstTensorView value, TensorView average);
/// Exchanges the values of a and b, f64 or f32.
DKFAC_KERNEL(void, exchange, TensorView a, TensorView b);
/// Shortcut without parameters (PadShortcut), and the gradient of its input.
DKFAC_KERNEL(void, pad_channels, const PadShape& shape, ConstTensorView large, TensorView small);
DKFAC_KERNEL(void, pad_channels_backward, const PadShape& shape, ConstTensorView small,
             TensorView large);
/// flipped[n,h,w,c]: every image of x with left and right exchanged; not in place.
DKFAC_KERNEL(void, flip_horizontal, ConstTensorView x, TensorView flipped);

}  // namespace dkfac::nn
