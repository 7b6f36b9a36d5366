#pragma once

#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

#include "core/shared/kernel.h"

/// Kernels of the step length.
namespace dkfac::kfac {

/// As store_length_factors(); products[2,3], lengths[2] and factors[2] are f64.
DKFAC_KERNEL(void, set_length_factors, StepLength rule, ConstTensorView products,
             TensorView lengths, TensorView factors);
/// u = factors[0] u + factors[1] v, without u where factors[0] is 0. factors[2]: f64. v, u: f32 or
/// f64, of one size and type, contiguous, not empty.
DKFAC_KERNEL(void, set_length, ConstTensorView factors, ConstTensorView v, TensorView u);

}  // namespace dkfac::kfac
