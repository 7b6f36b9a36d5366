#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/statistics.h"

/// Operands of 16 bits, which products on a device take as they are.
namespace dkfac::kfac::cuda {

/// to = round(scale * f32(x)), saturating at the largest finite value, in one pass that also finds
/// stats.max_abs of f32(x) and adds to stats.underflow, where these are given. x: floating, [n,w]
/// with any row stride, or without gaps; to: f16 or bf16, without gaps, of the same shape. The
/// values are those of ops::round_to.
void round_operand(Context& ctx, double scale, ConstTensorView x, OperandStats stats,
                   TensorView to);
/// max_abs[0] (f32) = max |x|, infinity for a NaN; x as above, f16 or bf16.
void find_range(Context& ctx, ConstTensorView x, TensorView max_abs);

}  // namespace dkfac::kfac::cuda
