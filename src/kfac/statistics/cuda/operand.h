#pragma once

#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/statistics.h"

#include "core/shared/kernel.h"

/// 16-bit operands, which products on a device read directly.
namespace dkfac::kfac::cuda {

/// Computes to = round(scale * f32(x)), saturating at the largest finite value. The same pass
/// computes stats.max_abs of f32(x) and adds to stats.underflow, where these are given. x:
/// floating, [n,w] with any row stride, or contiguous; to: f16 or bf16, contiguous, of the same
/// shape. The values equal those of ops::round_to().
DKFAC_DEVICE_KERNEL(void, round_operand, double scale, ConstTensorView x, OperandStats stats,
                    TensorView to);
/// Computes max_abs[0] (f32) = max |x|, infinity for a NaN; x as above, f16 or bf16.
DKFAC_DEVICE_KERNEL(void, find_range, ConstTensorView x, TensorView max_abs);

}  // namespace dkfac::kfac::cuda
