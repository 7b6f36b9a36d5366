#pragma once

#include "dkfac/core/tensor_view.h"

/// Loops over rows of host matrices that core has no operation for.
namespace dkfac::nn::cpu {

/// y[r,:] = row for every r; y: [rows,c] contiguous, or any shape whose last dimension is c.
void repeat_row(ConstTensorView row, TensorView y);

/// y = x + z, equal shapes, contiguous.
void add(ConstTensorView x, ConstTensorView z, TensorView y);

/// x *= factor, contiguous.
void scale(TensorView x, double factor);

}  // namespace dkfac::nn::cpu
