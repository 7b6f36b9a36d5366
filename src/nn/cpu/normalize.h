#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/nn/layers.h"

/// Loops of batch normalisation over host memory: x[groups,rows,c] contiguous, f64, f32, bf16 or
/// f16; per-channel tensors [groups,c] of the dtype that x is computed in. Sums are formed in an
/// order that does not depend on the threads, short runs in that dtype and the rest in f64.
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

/// Mean and variance (divided by rows; f64) over the rows of each group. One pass around the mean
/// of a few rows, so that a mean that is large beside the deviation does not cancel, and a second
/// one around the mean when those rows were unlike the others.
void batch_moments(Context& ctx, const NormShape& shape, ConstTensorView x, TensorView mean,
                   TensorView rest, TensorView variance);

/// (x - mean) * scale + shift.
struct Affine {
  Mean mean;
  ConstTensorView scale, shift;
};

/// y = activation((x - mean) * scale + shift + addend); the addend, shaped like x, may be
/// empty.
void normalize(Context& ctx, const NormShape& shape, ConstTensorView x, const Affine& affine,
               ConstTensorView addend, const Activation& activation, TensorView y);

/// The gradient g before the activation of normalize(): dy times the activation's derivative, which
/// follows from the output y, or for ReLU without an addend from x (y is empty then).
struct OutputGrad {
  ConstTensorView dy, y;
  Activation activation;
};

/// sum_g = sum over rows of g, sum_g_centered = sum of g * (x - mean), both f64; g itself goes to
/// `masked` unless that is empty. Reads x, dy and y once.
void gradient_sums(Context& ctx, const NormShape& shape, ConstTensorView x, const Affine& affine,
                   const OutputGrad& grad, TensorView masked, TensorView sum_g,
                   TensorView sum_g_centered);

/// dx = a*g + b*(x - mean) + c. Reads x, dy and y once.
struct GradCoefficients {
  ConstTensorView a, b, c;
};
void normalize_backward(Context& ctx, const NormShape& shape, ConstTensorView x,
                        const Affine& affine, const OutputGrad& grad, const GradCoefficients& k,
                        TensorView dx);

}  // namespace dkfac::nn::cpu
