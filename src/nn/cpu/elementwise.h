#pragma once

#include "dkfac/core/tensor_view.h"

/// Elementwise loops over host memory that core has no operation for.
namespace dkfac::nn::cpu {

/// y[r,:] = row for every r; y: [rows,c] contiguous, or any shape whose last dimension is c.
void repeat_row(ConstTensorView row, TensorView y);

/// y = x + z, equal shapes, contiguous.
void add(ConstTensorView x, ConstTensorView z, TensorView y);

/// x *= factor, contiguous.
void scale(TensorView x, double factor);

/// y = max(x, 0), NaN stays NaN; contiguous.
void relu(ConstTensorView x, TensorView y);
/// dx = dy where the output y of relu() is positive, else 0.
void relu_backward(ConstTensorView y, ConstTensorView dy, TensorView dx);

}  // namespace dkfac::nn::cpu
