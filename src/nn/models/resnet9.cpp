#include "nn/models/models.h"

namespace dkfac::nn {
namespace {

/// Convolution, BatchNorm, activation.
std::unique_ptr<Sequential> make_unit(const FirstConv& conv, std::int64_t out,
                                      const ModelOptions& options) {
  auto unit = std::make_unique<Sequential>();
  unit->add<Conv2d>("conv", conv.in, out, conv.options)
      .add<BatchNorm2d>("norm", out, norm_options(options, activation_of(options)));
  return unit;
}

std::unique_ptr<Sequential> make_halving_unit(std::int64_t in, std::int64_t out,
                                              const ModelOptions& options) {
  auto unit = std::make_unique<Sequential>();
  unit->add<Conv2d>("conv", in, out, conv_options(3));
  add_pooled_norm(*unit, out, {.norm = "norm", .activation = "activation", .pool = "pool"},
                  options);
  return unit;
}

/// x + unit(unit(x)), with the activation inside the units.
std::unique_ptr<Layer> make_residual(std::int64_t channels, const ModelOptions& options) {
  const FirstConv conv{channels, conv_options(3)};
  auto body = std::make_unique<Sequential>();
  body->add("res1", make_unit(conv, channels, options))
      .add("res2", make_unit(conv, channels, options));
  return std::make_unique<Residual>(std::move(body), nullptr, ResidualOptions{.body = ""});
}

}  // namespace

std::unique_ptr<Layer> make_resnet9(const ModelOptions& options) {
  check_image(options, 8);
  constexpr std::int64_t kWidth = 64;
  const std::int64_t width = options.width > 0 ? options.width : kWidth;
  auto net = std::make_unique<Sequential>();
  const FirstConv first = add_whitening(*net, options, conv_options(3));
  net->add("prep", make_unit(first, width, options));
  for (int stage = 0; stage < 3; ++stage) {
    const std::int64_t in = width << stage, out = 2 * in;
    auto layer = make_halving_unit(in, out, options);
    if (stage != 1) layer->add("residual", make_residual(out, options));
    net->add("layer" + std::to_string(stage + 1), std::move(layer));
  }
  net->add<GlobalPool>("pool", PoolKind::max).add<Linear>("fc", 8 * width, options.classes, false);
  add_logit_scale(*net, options);
  return net;
}

}  // namespace dkfac::nn
