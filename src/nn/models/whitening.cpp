#include "dkfac/nn/whitening.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/layers.h"

namespace dkfac::nn {
namespace {

void check_arguments(const WhiteningImages& images, const WhiteningOptions& options) {
  DKFAC_CHECK(options.kernel > 0, "[whitening] kernel is ", options.kernel, "; it must be > 0");
  DKFAC_CHECK(options.samples > 0, "[whitening] samples is ", options.samples, "; it must be > 0");
  DKFAC_CHECK(options.epsilon >= 0, "[whitening] epsilon is ", options.epsilon,
              "; it must be >= 0");
  const Shape shape{images.count, images.height, images.width, images.channels};
  DKFAC_CHECK(shape.numel() > 0 && static_cast<std::int64_t>(images.pixels.size()) == shape.numel(),
              "[whitening] ", images.pixels.size(), " pixels were given for images ", shape,
              "; give all pixels of at least one image");
  DKFAC_CHECK(images.height >= options.kernel && images.width >= options.kernel,
              "[whitening] images ", images.height, "x", images.width, " have no patch of ",
              options.kernel, "x", options.kernel, "; choose a smaller kernel");
  const auto channels = static_cast<std::size_t>(images.channels);
  DKFAC_CHECK(images.mean.size() == channels && images.stddev.size() == channels, "[whitening] ",
              images.mean.size(), " means and ", images.stddev.size(),
              " deviations were given for ", channels, " channels; give one of each per channel");
  for (const double stddev : images.stddev)
    DKFAC_CHECK(stddev > 0 && std::isfinite(stddev), "[whitening] a deviation of a channel is ",
                stddev, "; it must be positive and finite");
}

/// Writes images [first, first + n), normalised, to x[n,h,w,c].
void normalize_images(const WhiteningImages& images, std::int64_t first, TensorView x) {
  const std::int64_t size = images.height * images.width * images.channels;
  const std::uint8_t* pixels = images.pixels.data() + first * size;
  auto* out = x.data<double>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const auto c = static_cast<std::size_t>(i % images.channels);
    out[i] = (pixels[i] / 255.0 - images.mean[c]) / images.stddev[c];
  }
}

/// Computes the lower triangle of S, a block of images at a time, so that memory does not grow with
/// the data.
Tensor patch_covariance(Context& ctx, const WhiteningImages& images,
                        const WhiteningOptions& options) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t count = std::min(options.samples, images.count);
  ops::PatchSpec spec{.n = count,
                      .h = images.height,
                      .w = images.width,
                      .c = images.channels,
                      .window = ops::Window::square(options.kernel)};
  const double scale = 1.0 / static_cast<double>(std::max<std::int64_t>(1, spec.rows() - 1));
  Tensor covariance = Tensor::zeros(ctx, Shape{spec.width(), spec.width()}, DType::f64);
  Tensor x =
      Tensor::empty(ctx, Shape{kBlock, images.height, images.width, images.channels}, DType::f64);
  for (std::int64_t first = 0; first < count; first += kBlock) {
    spec.n = std::min(kBlock, count - first);
    const TensorView block = x.view().slice(0, 0, spec.n);
    normalize_images(images, first, block);
    ops::patch_gram(ctx, spec, scale, block, 1.0, covariance);
  }
  return covariance;
}

/// Writes column k of the eigenvectors as a filter of this length, with the largest component
/// positive.
void write_filter(ConstTensorView vectors, std::int64_t k, double length, double* filter) {
  const std::int64_t d = vectors.dim(0);
  const double* column = vectors.data<double>() + k;
  double largest = 0;
  for (std::int64_t i = 0; i < d; ++i) {
    const double v = column[i * vectors.stride(0)];
    if (std::abs(v) > std::abs(largest)) largest = v;
  }
  const double factor = std::copysign(length, largest);
  for (std::int64_t i = 0; i < d; ++i) filter[i] = factor * column[i * vectors.stride(0)];
}

/// Returns the first convolution of the forward order; null without any.
Conv2d* first_convolution(Model& model) {
  Conv2d* first = nullptr;
  model.visit([&](Layer& layer) {
    if (first == nullptr) first = dynamic_cast<Conv2d*>(&layer);
  });
  return first;
}

}  // namespace

Tensor whitening_filters(Context& ctx, const WhiteningImages& images,
                         const WhiteningOptions& options) {
  if (ctx.device().is_cuda()) {
    Context host(Device::cpu(), {.backend = ctx.backend()});
    return whitening_filters(host, images, options);
  }
  check_arguments(images, options);
  Tensor vectors = patch_covariance(ctx, images, options);
  const std::int64_t d = vectors.shape()[0];
  Tensor lambda = Tensor::empty(ctx, Shape{d}, DType::f64);
  std::int32_t info = 0;
  ops::eigh(ctx, vectors, lambda, view_of(&info, {1}));
  ctx.stream().synchronize();
  if (info != 0) {
    throw NumericError(detail::concat("[whitening] the eigenvalues of the ", d, "x", d,
                                      " patch covariance did not converge; check the images"));
  }
  const double* values = lambda.data<double>();
  // Rounding may give a zero eigenvalue any value below this.
  const double noise =
      static_cast<double>(d) * std::numeric_limits<double>::epsilon() * values[d - 1];
  DKFAC_CHECK(values[0] + options.epsilon > noise, "[whitening] the smallest eigenvalue of the ", d,
              "x", d, " patch covariance is ", values[0], ", and epsilon ", options.epsilon,
              " leaves nothing to divide by; raise epsilon");
  Tensor filters =
      Tensor::empty(ctx, Shape{d, options.kernel, options.kernel, images.channels}, DType::f64);
  for (std::int64_t k = 0; k < d; ++k) {
    const std::int64_t column = d - 1 - k;  // eigh() sorts ascending.
    write_filter(vectors, column, 1.0 / std::sqrt(values[column] + options.epsilon),
                 filters.data<double>() + k * d);
  }
  return filters;
}

int whitening_kernel(Model& model) {
  const Conv2d* conv = first_convolution(model);
  return conv != nullptr && conv->options().frozen ? conv->options().window.kernel_h : 0;
}

void set_whitening(Context& ctx, Model& model, ConstTensorView filters) {
  Conv2d* conv = first_convolution(model);
  DKFAC_CHECK(conv != nullptr && conv->options().frozen, "[whitening] the first convolution of '",
              model.name(), "' is not frozen; choose a model with whitening");
  const TensorView weight = model.tensor(conv->name() + ".weight").view;
  DKFAC_CHECK(filters.shape() == weight.shape(), "[whitening] the filters are ", filters.shape(),
              ", but '", conv->name(), "' of '", model.name(), "' takes ", weight.shape(),
              "; use the kernel and the channels of the model");
  if (filters.device() == ctx.device()) return ops::cast(ctx, filters, weight);
  Context host;
  Tensor rounded = Tensor::empty(host, weight.shape(), weight.dtype());
  ops::cast(host, filters, rounded);
  ops::copy(ctx, rounded, weight);
}

}  // namespace dkfac::nn
