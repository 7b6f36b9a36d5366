#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

namespace dkfac::kfac::cpu {
#include "kfac/inverse/backend_inverse.inc"
}  // namespace dkfac::kfac::cpu

/// Device work, or stubs that throw DeviceError.
namespace dkfac::kfac::cuda {
#include "kfac/inverse/backend_inverse.inc"

/// x[r,c] /= by[0] (f64), which only the device knows.
void divide(Context& ctx, TensorView x, ConstTensorView by);
/// V <- G^-1 V A^-1 of all groups, as apply_small(), for groups of any width.
void apply_groups(Context& ctx, ConstTensorView a, ConstTensorView g, TensorView weight,
                  TensorView bias);
}  // namespace dkfac::kfac::cuda
