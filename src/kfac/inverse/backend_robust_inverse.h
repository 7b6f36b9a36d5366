#pragma once

#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"
#include "kfac/inverse/residual.h"

/// Operations of robust inversion beside those of ops; see robust_inverse.h and residual.h.
/// Contiguous tensors unless said otherwise.
namespace dkfac::kfac {

/// out[n,d] = L^-1 x for L in the lower triangle of l[n,n], which is used up.
DKFAC_KERNEL(void, solve_rows, TensorView l, ConstTensorView x, TensorView out);
/// scaled[r,c] = q[r,c] / sqrt(max(w[c], 0) + shift), in f64.
DKFAC_KERNEL(void, scale_vectors, ConstTensorView q, ConstTensorView w, double shift,
             TensorView scaled);
/// values = max(values, 0) for ascending ones; whether one was below 0 by more than rounding, that
/// is by 16 d eps times the largest. Waits for a device.
DKFAC_KERNEL(bool, clip_eigenvalues, TensorView values);
/// As in residual.h; wait for a device.
DKFAC_KERNEL(bool, inverts, FactorForm form, const Inverted& m, ConstTensorView x);
DKFAC_KERNEL(bool, decomposes, ConstTensorView average, ConstTensorView vectors,
             ConstTensorView values);

}  // namespace dkfac::kfac
