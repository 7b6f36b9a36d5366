#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

/// Loops of batch normalisation over host memory: x[groups,rows,c] contiguous, per-channel tensors
/// [groups,c], f32 or f64. Sums are formed in an order that does not depend on the threads, short
/// runs in the type of x and the rest in f64.
namespace dkfac::nn::cpu {

struct NormShape {
  std::int64_t groups = 1;
  std::int64_t rows = 0;  ///< Values per group and channel.
  std::int64_t channels = 0;
};

/// A mean of more digits than its type has: mean + rest.
struct Mean {
  ConstTensorView mean, rest;
};

/// Mean and variance (divided by rows; f64) over the rows of each group. Two passes around the
/// mean, so a mean that is large beside the deviation does not cancel.
void batch_moments(Context& ctx, const NormShape& shape, ConstTensorView x, TensorView mean,
                   TensorView rest, TensorView variance);

/// y = (x - mean) * scale + shift.
void normalize(Context& ctx, const NormShape& shape, ConstTensorView x, Mean mean,
               ConstTensorView scale, ConstTensorView shift, TensorView y);

/// sum_dy = sum over rows of dy, sum_dy_centered = sum of dy * (x - mean); both f64.
void gradient_sums(Context& ctx, const NormShape& shape, ConstTensorView x, Mean mean,
                   ConstTensorView dy, TensorView sum_dy, TensorView sum_dy_centered);

/// dx = a*dy + b*(x - mean) + c.
void normalize_backward(Context& ctx, const NormShape& shape, ConstTensorView x, Mean mean,
                        ConstTensorView dy, ConstTensorView a, ConstTensorView b, ConstTensorView c,
                        TensorView dx);

}  // namespace dkfac::nn::cpu
