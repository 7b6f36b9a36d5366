#pragma once

#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

#include "core/shared/kernel.h"

/// Kernels of the step length.
namespace dkfac::kfac {

/// factors[2] = length_factors() of products[2,3]: vv, uu, uv of weight and bias, which are added
/// up; enters the length into lengths[2]. All f64.
DKFAC_KERNEL(void, set_length_factors, StepLength rule, ConstTensorView products,
             TensorView lengths, TensorView factors);
/// u *= factors[0], or u = factors[1] v where that is 0. factors[2]: f64. v, u: f32 or f64, of one
/// size and type, contiguous, not empty.
DKFAC_KERNEL(void, set_length, ConstTensorView factors, ConstTensorView v, TensorView u);

}  // namespace dkfac::kfac
