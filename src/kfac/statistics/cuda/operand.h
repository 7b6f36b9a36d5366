#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/statistics.h"

/// 16-bit operands, which products on a device read directly.
namespace dkfac::kfac::cuda {

/// Computes to = round(scale * f32(x)), saturating at the largest finite value. The same pass
/// computes stats.max_abs of f32(x) and adds to stats.underflow, where these are given. x:
/// floating, [n,w] with any row stride, or contiguous; to: f16 or bf16, contiguous, of the same
/// shape. The values equal those of ops::round_to().
void round_operand(Context& ctx, double scale, ConstTensorView x, OperandStats stats,
                   TensorView to);
/// Computes max_abs[0] (f32) = max |x|, infinity for a NaN; x as above, f16 or bf16.
void find_range(Context& ctx, ConstTensorView x, TensorView max_abs);

}  // namespace dkfac::kfac::cuda
