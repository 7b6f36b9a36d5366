#pragma once

#include <cstdint>
#include <span>

#include "dkfac/core/tensor.h"
#include "dkfac/nn/model.h"

/// Fixed first-layer filters that decorrelate the patches of the training images (Page, "How to
/// train your ResNet 8", 2019).
namespace dkfac::nn {

/// Images of 8 bits, [count,height,width,channels], and what their values / 255 are normalised
/// with: a mean and a deviation for each channel. Borrowed.
struct WhiteningImages {
  std::span<const std::uint8_t> pixels;
  std::int64_t count = 0, height = 0, width = 0, channels = 0;
  std::span<const double> mean, stddev;
};

struct WhiteningOptions {
  int kernel = 3;  ///< The patches are kernel x kernel.
  /// Added to the eigenvalues, in squares of normalised pixel values. >= 0.
  double epsilon = 0.01;
  std::int64_t samples = 10000;  ///< The first images of the data set, at most. > 0.
};

/// Filters [d, kernel, kernel, c], d = kernel^2 c, in f64, computed on the host whatever the device
/// of ctx: filter k is v_k / sqrt(lambda_k + epsilon) for the k-th largest eigenvalue of S = sum(p
/// p') / (n - 1) over the n patches p of the normalised images. No padding, and the mean of p stays
/// in S: what BatchNorm after the filters sees is their covariance around 0. Of each filter the
/// component of the largest magnitude is positive. Throws InvalidArgument for images smaller than
/// the kernel and for an epsilon too small for patches that are linearly dependent, NumericError
/// when the decomposition does not converge.
[[nodiscard]] Tensor whitening_filters(Context& ctx, const WhiteningImages& images,
                                       const WhiteningOptions& options = {});

/// True when the model's first convolution is frozen.
[[nodiscard]] bool has_whitening(Model& model);

/// Writes filters of its shape, which are on the host or where the model is, into the model's first
/// convolution, which must be frozen. Throws InvalidArgument otherwise.
void set_whitening(Context& ctx, Model& model, ConstTensorView filters);

}  // namespace dkfac::nn
