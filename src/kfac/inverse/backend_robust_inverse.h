#pragma once

#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"

/// Kernels of robust inversion beyond the operations of ops; see robust_inverse.h.
/// Contiguous tensors unless said otherwise.
namespace dkfac::kfac {

/// out[n,d] = L^-1 x for L in the lower triangle of l[n,n], which is overwritten.
DKFAC_KERNEL(void, solve_rows, TensorView l, ConstTensorView x, TensorView out);
/// scaled[r,c] = q[r,c] / sqrt(max(w[c], 0) + shift), in f64.
DKFAC_KERNEL(void, scale_vectors, ConstTensorView q, ConstTensorView w, double shift,
             TensorView scaled);
/// values = max(values, 0) for ascending values. Returns whether one was below 0 by more than
/// rounding, that is by 16 d eps times the largest. Synchronizes with a device.
DKFAC_KERNEL(bool, clip_eigenvalues, TensorView values);

/// Adds damping[0] (f64) to the diagonal of x[n,n], which may have gaps between rows.
DKFAC_KERNEL(void, add_damping, ConstTensorView damping, TensorView x);
/// Sets the diagonal of x[n,n] to NaN where info[0] (i32) is not 0.
DKFAC_KERNEL(void, fail_where, ConstTensorView info, TensorView x);

}  // namespace dkfac::kfac
