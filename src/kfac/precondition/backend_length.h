#pragma once

#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

#include "core/shared/kernel.h"

/// Kernels of the step length.
namespace dkfac::kfac {

/// u *= length_factor() of products[2,3], f64: vv, uu, uv of weight and bias, which are added up.
/// Or u = v where that is 0. v, u: f32 or f64, of one size and type, contiguous, not empty.
DKFAC_KERNEL(void, set_length, StepLength rule, ConstTensorView products, ConstTensorView v,
             TensorView u);

}  // namespace dkfac::kfac
