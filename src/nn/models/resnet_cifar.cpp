#include "nn/models/residual_blocks.h"

namespace dkfac::nn {
namespace {

/// Makes a 3x3 stem, then three stages of `blocks` blocks with width, 2 width and 4 width channels;
/// the depth is 6 blocks + 2.
std::unique_ptr<Layer> make_cifar_resnet(const ModelOptions& options, int blocks) {
  check_image(options, 4);
  constexpr std::int64_t kWidth = 16;
  const std::int64_t width = options.width > 0 ? options.width : kWidth;
  auto net = std::make_unique<Sequential>();
  const FirstConv first = add_whitening(*net, options, conv_options(3));
  net->add<Conv2d>("conv1", first.in, width, first.options)
      .add<BatchNorm2d>("bn1", width, norm_options(options, activation_of(options)));
  std::int64_t channels = width;
  for (int stage = 0; stage < 3; ++stage) {
    auto layers = std::make_unique<Sequential>();
    for (int block = 0; block < blocks; ++block) {
      const BlockShape shape{channels, width << stage, stage > 0 && block == 0 ? 2 : 1};
      layers->add("", basic_block(shape, Shortcut::pad, options));
      channels = shape.width;
    }
    net->add("layer" + std::to_string(stage + 1), std::move(layers));
  }
  net->add<GlobalPool>("pool", PoolKind::average).add<Linear>("fc", channels, options.classes);
  add_logit_scale(*net, options);
  return net;
}

}  // namespace

std::unique_ptr<Layer> make_resnet20(const ModelOptions& options) {
  return make_cifar_resnet(options, 3);
}

std::unique_ptr<Layer> make_resnet32(const ModelOptions& options) {
  return make_cifar_resnet(options, 5);
}

}  // namespace dkfac::nn
