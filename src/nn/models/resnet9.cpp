#include "dkfac/core/error.h"

#include "nn/models/models.h"

namespace dkfac::nn {
namespace {

/// The options with every default resolved.
struct Switches {
  bool whitening, pool_before_activation, frozen_bn_scale;
  double celu_alpha, logit_scale;
};
constexpr Switches kTuned{true, true, true, 0.3, 1.0 / 16};
constexpr Switches kPlain{false, false, false, 0.0, 1.0 / 8};

Switches resolve(const ResNet9Options& set, const Switches& preset) {
  const Switches s{set.whitening.value_or(preset.whitening),
                   set.pool_before_activation.value_or(preset.pool_before_activation),
                   set.frozen_bn_scale.value_or(preset.frozen_bn_scale),
                   set.celu_alpha.value_or(preset.celu_alpha),
                   set.logit_scale.value_or(preset.logit_scale)};
  DKFAC_CHECK(s.celu_alpha >= 0, "[make_model] celu_alpha is ", s.celu_alpha,
              "; it must be > 0, or 0 for ReLU");
  DKFAC_CHECK(s.logit_scale > 0, "[make_model] logit_scale is ", s.logit_scale, "; it must be > 0");
  return s;
}

BatchNormOptions norm_of(const ModelOptions& options, const Switches& s) {
  const Activation celu{ActivationKind::celu, s.celu_alpha};
  BatchNormOptions norm = norm_options(options, s.celu_alpha > 0 ? celu : kRelu);
  norm.trainable_scale = !s.frozen_bn_scale;
  return norm;
}

/// Convolution, BatchNorm, activation.
std::unique_ptr<Sequential> make_unit(std::int64_t in, std::int64_t out, int kernel,
                                      const BatchNormOptions& norm) {
  auto unit = std::make_unique<Sequential>();
  unit->add<Conv2d>("conv", in, out, conv_options(kernel)).add<BatchNorm2d>("norm", out, norm);
  return unit;
}

std::unique_ptr<Sequential> make_halving_unit(std::int64_t in, std::int64_t out,
                                              const BatchNormOptions& norm,
                                              bool pool_before_activation) {
  auto unit = std::make_unique<Sequential>();
  unit->add<Conv2d>("conv", in, out, conv_options(3));
  if (pool_before_activation) unit->add<Pool2d>("pool", PoolKind::max, 2, 2);
  unit->add<BatchNorm2d>("norm", out, norm);
  if (!pool_before_activation) unit->add<Pool2d>("pool", PoolKind::max, 2, 2);
  return unit;
}

/// x + unit(unit(x)), with the activation inside the units.
std::unique_ptr<Layer> make_residual(std::int64_t channels, const BatchNormOptions& norm) {
  auto body = std::make_unique<Sequential>();
  body->add("res1", make_unit(channels, channels, 3, norm))
      .add("res2", make_unit(channels, channels, 3, norm));
  return std::make_unique<Residual>(std::move(body), nullptr, ResidualOptions{.body = ""});
}

void add_stem(Sequential& net, std::int64_t channels, std::int64_t width, bool whitening,
              const BatchNormOptions& norm) {
  if (!whitening) {
    net.add("prep", make_unit(channels, width, 3, norm));
    return;
  }
  ConvOptions filters = conv_options(3);
  filters.frozen = true;
  const std::int64_t patch = 3 * 3 * channels;  // One filter per eigenvector.
  net.add<Conv2d>("whiten", channels, patch, filters).add("prep", make_unit(patch, width, 1, norm));
}

std::unique_ptr<Layer> make(const ModelOptions& options, const Switches& preset) {
  check_image(options, 8);
  constexpr std::int64_t kWidth = 64;
  const std::int64_t width = options.width > 0 ? options.width : kWidth;
  const Switches s = resolve(options.resnet9, preset);
  const BatchNormOptions norm = norm_of(options, s);
  auto net = std::make_unique<Sequential>();
  add_stem(*net, options.input[2], width, s.whitening, norm);
  for (int stage = 0; stage < 3; ++stage) {
    const std::int64_t in = width << stage, out = 2 * in;
    auto layer = make_halving_unit(in, out, norm, s.pool_before_activation);
    if (stage != 1) layer->add("residual", make_residual(out, norm));
    net->add("layer" + std::to_string(stage + 1), std::move(layer));
  }
  net->add<GlobalPool>("pool", PoolKind::max)
      .add<Linear>("fc", 8 * width, options.classes, false)
      .add<Scale>("scale", s.logit_scale);
  return net;
}

}  // namespace

std::unique_ptr<Layer> make_resnet9(const ModelOptions& options) { return make(options, kTuned); }

std::unique_ptr<Layer> make_resnet9_plain(const ModelOptions& options) {
  return make(options, kPlain);
}

}  // namespace dkfac::nn
