#pragma once

#include <cstdint>

#include "dkfac/core/tensor_view.h"
#include "dkfac/nn/layers.h"

/// What batch normalisation computes with: x[groups,rows,c] contiguous, f64, f32, bf16 or f16;
/// per-channel tensors [groups,c] of the dtype that x is computed in.
namespace dkfac::nn {

struct NormShape {
  std::int64_t groups = 1;
  std::int64_t rows = 0;  ///< Values per group and channel.
  std::int64_t channels = 0;
};

/// A mean of more digits than its type has: mean + rest.
struct Mean {
  ConstTensorView mean, rest;
};

/// (x - mean) * scale + shift.
struct Affine {
  Mean mean;
  ConstTensorView scale, shift;
};

/// Trained parameters and running statistics, all [c].
struct NormChannels {
  ConstTensorView scale, shift;
  TensorView running_mean, running_var;
  double epsilon = 1e-5, momentum = 0.1;
};

/// y = max(0, (x - mean) * inv_std * scale + shift) of one group: all but x [c], of the dtype that
/// x is computed in.
struct ReluNorm {
  ConstTensorView x, mean, inv_std, scale, shift;
};

/// What normalising a batch leaves behind, all [groups,c]: an Affine, and 1/sqrt(variance + eps).
struct NormStatistics {
  TensorView mean, rest, inv_std, scale, shift;
  [[nodiscard]] Affine affine() const { return {{mean, rest}, scale, shift}; }
};

/// The gradient g before the activation of normalize(): dy times the activation's derivative, which
/// follows from the output y, or for ReLU without an addend from x (y is empty then).
struct OutputGrad {
  ConstTensorView dy, y;
  Activation activation;
};

/// dx = a*g + b*(x - mean) + c.
struct GradCoefficients {
  ConstTensorView a, b, c;
};
/// The same to be written; or all empty.
struct NormCoefficients {
  TensorView a, b, c;
  [[nodiscard]] GradCoefficients made() const { return {a, b, c}; }
};

}  // namespace dkfac::nn
