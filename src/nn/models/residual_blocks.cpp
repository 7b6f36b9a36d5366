#include "nn/models/residual_blocks.h"

#include "nn/models/pad_shortcut.h"

namespace dkfac::nn {
namespace {

/// Options of a block's last BatchNorm; the activation comes after the sum.
BatchNormOptions last_norm(const ModelOptions& options) {
  BatchNormOptions norm = norm_options(options);
  if (options.zero_gamma) norm.initial_scale = norm.scale_stddev = 0;
  return norm;
}

/// Returns null, the identity, where the shapes are equal.
std::unique_ptr<Layer> make_shortcut(Shortcut kind, std::int64_t in, std::int64_t out, int stride,
                                     const ModelOptions& options) {
  if (in == out && stride == 1) return nullptr;
  if (kind == Shortcut::pad) return std::make_unique<PadShortcut>(in, out, stride);
  auto projection = std::make_unique<Sequential>();
  const bool pooled = kind == Shortcut::pooled && stride > 1;
  if (pooled) projection->add<Pool2d>("pool", PoolKind::average, stride, stride);
  projection->add<Conv2d>("0", in, out, conv_options(1, pooled ? 1 : stride))
      .add<BatchNorm2d>("1", out, norm_options(options));
  return projection;
}

std::unique_ptr<Layer> make_residual(std::unique_ptr<Layer> body, std::unique_ptr<Layer> shortcut,
                                     const ModelOptions& options) {
  return std::make_unique<Residual>(
      std::move(body), std::move(shortcut),
      ResidualOptions{.activation = activation_of(options), .body = "", .shortcut = "downsample"});
}

}  // namespace

std::unique_ptr<Layer> basic_block(const BlockShape& shape, Shortcut shortcut,
                                   const ModelOptions& options) {
  const auto [in, width, stride] = shape;
  auto body = std::make_unique<Sequential>();
  body->add<Conv2d>("conv1", in, width, conv_options(3, stride))
      .add<BatchNorm2d>("bn1", width, norm_options(options, activation_of(options)))
      .add<Conv2d>("conv2", width, width, conv_options(3))
      .add<BatchNorm2d>("bn2", width, last_norm(options));
  return make_residual(std::move(body), make_shortcut(shortcut, in, width, stride, options),
                       options);
}

std::unique_ptr<Layer> bottleneck_block(const BlockShape& shape, Shortcut shortcut,
                                        const ModelOptions& options) {
  const auto [in, width, stride] = shape;
  const std::int64_t out = kExpansion * width;
  auto body = std::make_unique<Sequential>();
  body->add<Conv2d>("conv1", in, width, conv_options(1))
      .add<BatchNorm2d>("bn1", width, norm_options(options, activation_of(options)))
      .add<Conv2d>("conv2", width, width, conv_options(3, stride))
      .add<BatchNorm2d>("bn2", width, norm_options(options, activation_of(options)))
      .add<Conv2d>("conv3", width, out, conv_options(1))
      .add<BatchNorm2d>("bn3", out, last_norm(options));
  return make_residual(std::move(body), make_shortcut(shortcut, in, out, stride, options), options);
}

}  // namespace dkfac::nn
