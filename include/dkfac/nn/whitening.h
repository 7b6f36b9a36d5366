#pragma once

#include <cstdint>
#include <span>

#include "dkfac/core/tensor.h"
#include "dkfac/nn/model.h"

/// Fixed first-layer filters that decorrelate the patches of the training images (Page, "How to
/// train your ResNet 8", 2019).
namespace dkfac::nn {

/// Images of 8 bits, [count,height,width,channels], with the mean and deviation of each channel
/// that normalise their values / 255. Borrowed.
struct WhiteningImages {
  std::span<const std::uint8_t> pixels;
  std::int64_t count = 0, height = 0, width = 0, channels = 0;
  std::span<const double> mean, stddev;
};

struct WhiteningOptions {
  int kernel = 3;  ///< Patches are kernel x kernel.
  /// Added to the eigenvalues, in squared units of normalised pixel values. >= 0.
  double epsilon = 0.01;
  std::int64_t samples = 10000;  ///< Number of images used, from the first of the data set, at
                                 ///< most. > 0.
};

/// Computes the filters [d, kernel, kernel, c], d = kernel^2 c, in f64, on the host whatever the
/// device of ctx. Filter k is v_k / sqrt(lambda_k + epsilon) for the k-th largest eigenvalue of S =
/// sum(p p') / (n - 1) over the n patches p of the normalised images. There is no padding, and the
/// mean of p stays in S: BatchNorm after the filters depends on the covariance around 0. The
/// component of largest magnitude of each filter is positive. Throws InvalidArgument for images
/// smaller than the kernel and for an epsilon too small for linearly dependent patches,
/// NumericError when the decomposition does not converge.
[[nodiscard]] Tensor whitening_filters(Context& ctx, const WhiteningImages& images,
                                       const WhiteningOptions& options = {});

/// Returns the kernel of the filters of a model that begins with frozen ones, its first
/// convolution; 0 for others.
[[nodiscard]] int whitening_kernel(Model& model);

/// Writes filters into the model's first convolution, which must be frozen. They have its shape,
/// and are on the host or on the model's device. Throws InvalidArgument otherwise.
void set_whitening(Context& ctx, Model& model, ConstTensorView filters);

}  // namespace dkfac::nn
