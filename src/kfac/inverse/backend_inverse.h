#pragma once

#include <span>

#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

#include "core/shared/kernel.h"
#include "kfac/inverse/applied_damping.h"
#include "kfac/inverse/norm_gradient.h"

/// Kernels of arithmetic with inverses. Arguments as in dkfac/kfac/inverse.h and robust_inverse.h,
/// already checked.
namespace dkfac::kfac {

DKFAC_KERNEL(void, invert_factor, ConstTensorView packed, double shift, TensorView inverse,
             TensorView info);
DKFAC_KERNEL(void, decompose_factor, ConstTensorView packed, TensorView vectors, TensorView values,
             TensorView info);
/// divide_by_products() computes x[r,c] /= rows[r]*columns[c] + lambda, divide_by_scales() x /=
/// scales + lambda. x may have gaps between rows.
DKFAC_KERNEL(void, divide_by_products, TensorView x, ConstTensorView rows, ConstTensorView columns,
             const AppliedDamping& damping);
DKFAC_KERNEL(void, divide_by_scales, TensorView x, ConstTensorView scales,
             const AppliedDamping& damping);
/// Kernel of precondition_norms().
DKFAC_KERNEL(void, solve_norms, NormFisher mode, std::span<const NormGradient> norms);

namespace cuda {

/// x[r,c] /= by[0] (f64), a value that is only on the device.
DKFAC_DEVICE_KERNEL(void, divide, TensorView x, ConstTensorView by);
/// V <- G^-1 V A^-1 of all groups, as apply_small(), for groups of any width.
DKFAC_DEVICE_KERNEL(void, apply_groups, ConstTensorView a, ConstTensorView g, TensorView weight,
                    TensorView bias);

}  // namespace cuda
}  // namespace dkfac::kfac
