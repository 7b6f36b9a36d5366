#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/nn/layers.h"

/// Shape of batch normalisation: x[groups,rows,c] contiguous, f64, f32, bf16 or f16; per-channel
/// tensors [groups,c] of the dtype that x is computed in.
namespace dkfac::nn {

struct NormShape {
  std::int64_t groups = 1;
  std::int64_t rows = 0;  ///< Values per group and channel.
  std::int64_t channels = 0;
};

/// A mean with more digits than its type has: mean + rest.
struct Mean {
  ConstTensorView mean, rest;
};

/// The affine map (x - mean) * scale + shift.
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

/// The map y = max(0, (x - mean) * inv_std * scale + shift) of one group: all but x are [c], of the
/// dtype that x is computed in.
struct ReluNorm {
  ConstTensorView x, mean, inv_std, scale, shift;
};

/// Results of normalising a batch, all [groups,c]: an Affine, and 1/sqrt(variance + eps).
struct NormMoments {
  TensorView mean, rest, inv_std, scale, shift;
  [[nodiscard]] Affine affine() const { return {{mean, rest}, scale, shift}; }
};

/// Length of pack_moments() (backend_normalize.h).
[[nodiscard]] constexpr std::int64_t packed_moments(std::int64_t channels) {
  return 1 + 3 * channels;
}

/// The gradient g before the activation of normalize(): dy, or the sum of dy and `addend` rounded
/// to their type, times the activation's derivative. That follows from the output y; for ReLU also
/// from the signs that normalize() left, or without an addend from x (y is empty in both cases).
struct OutputGrad {
  ConstTensorView dy, y;
  Activation activation;
  ConstTensorView signs = {};
  ConstTensorView addend = {};  ///< For train_gradients() on a device; else empty.
};

/// Whether normalize() can leave the signs of y: a byte for each 16 bytes of y, the k-th bit set
/// where their k-th element is > 0. This needs a device, channels that fill whole 16 bytes, and
/// tensors that begin at a multiple of 16 bytes.
[[nodiscard]] inline bool has_signs(const Context& ctx, const NormShape& s,
                                    std::initializer_list<ConstTensorView> tensors) {
  constexpr std::int64_t kBytes = 16;
  const auto begins = [](ConstTensorView t) {
    return reinterpret_cast<std::uintptr_t>(t.raw()) % kBytes == 0;
  };
  const auto size = static_cast<std::int64_t>(size_of(tensors.begin()->dtype()));
  return ctx.device().is_cuda() && s.channels * size % kBytes == 0 &&
         std::all_of(tensors.begin(), tensors.end(), begins);
}
/// Shape of the tensor of signs, i32.
[[nodiscard]] inline Shape signs_shape(const NormShape& s, DType dtype) {
  constexpr std::int64_t kBytesOfWord = 4 * 16;
  const auto bytes = s.groups * s.rows * s.channels * static_cast<std::int64_t>(size_of(dtype));
  return Shape{(bytes + kBytesOfWord - 1) / kBytesOfWord};
}

/// Coefficients of dx = a*g + b*(x - mean) + c.
struct GradCoefficients {
  ConstTensorView a, b, c;
};
/// GradCoefficients to be written; or all empty.
struct NormCoefficients {
  TensorView a, b, c;
  [[nodiscard]] GradCoefficients made() const { return {a, b, c}; }
};
/// What follows from a gradient for the channels: two sums over the rows, f64 [groups,c], and from
/// them the gradients of scale and shift, [c] or empty, and the coefficients.
struct ChannelGradients {
  TensorView sum_g, sum_g_centered, scale_grad, shift_grad;
  NormCoefficients to;
};

}  // namespace dkfac::nn
