#pragma once

#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"

/// Kernels of the KL clip.
namespace dkfac::kfac {

/// total[0] = sum of scales[n] * products[n], n >= 0; factor[0] = kl_factor(kappa, lr, total[0]).
/// All f64.
DKFAC_KERNEL(void, add_up, ConstTensorView products, ConstTensorView scales, TensorView total);
DKFAC_KERNEL(void, find_kl_factor, double kappa, double lr, ConstTensorView total,
             TensorView factor);
/// u *= factor[0] (f64) in place, 0 also where u is not finite. f32 or f64, contiguous, not empty.
DKFAC_KERNEL(void, scale_direction, ConstTensorView factor, TensorView u);

}  // namespace dkfac::kfac
