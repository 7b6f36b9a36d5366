#pragma once

#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

#include "core/shared/kernel.h"

/// Kernels of the step length. Vectors v, u and copy: f32 or f64, of one size and type, contiguous,
/// not empty. Products are f64, and have the same bits with every number of threads.
namespace dkfac::kfac {

/// copy = v and vv[1] = v'v.
DKFAC_KERNEL(void, keep_gradient, ConstTensorView v, TensorView copy, TensorView vv);
/// products[2] = u'u, u'v.
DKFAC_KERNEL(void, length_products, ConstTensorView v, ConstTensorView u, TensorView products);

/// As store_length_factors(); products[2,3], before[3], lengths[kLengths] and factors[2] are f64.
DKFAC_KERNEL(void, set_length_factors, StepLength rule, ConstTensorView products,
             ConstTensorView before, TensorView lengths, TensorView factors);
/// u = factors[0] u + factors[1] v, without u where factors[0] is 0. factors[2]: f64.
DKFAC_KERNEL(void, set_length, ConstTensorView factors, ConstTensorView v, TensorView u);

}  // namespace dkfac::kfac
