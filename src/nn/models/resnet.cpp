#include <algorithm>
#include <array>

#include "dkfac/core/error.h"

#include "nn/models/residual_blocks.h"

namespace dkfac::nn {
namespace {

std::int64_t width_of(const ModelOptions& options, std::int64_t published = 64) {
  return options.width > 0 ? options.width : published;
}

/// Adds the 3x3 stem of a network for small images.
void add_small_stem(Sequential& net, std::int64_t width, const ModelOptions& options) {
  const FirstConv first = add_whitening(net, options, conv_options(3));
  net.add<Conv2d>("conv1", first.in, width, first.options)
      .add<BatchNorm2d>("bn1", width, norm_options(options, activation_of(options)));
}

/// Adds stages of `blocks` blocks; the first block of all but the first stage halves the map.
/// make(shape) gives a block of `expansion` * shape.width channels. Returns the channels behind the
/// last one.
template <std::size_t stages, class MakeBlock>
std::int64_t add_stages(Sequential& net, std::int64_t width, const std::array<int, stages>& blocks,
                        std::int64_t expansion, MakeBlock&& make) {
  std::int64_t channels = width;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    auto layers = std::make_unique<Sequential>();
    for (int block = 0; block < blocks[stage]; ++block) {
      const BlockShape shape{channels, width << stage, stage > 0 && block == 0 ? 2 : 1};
      layers->add("", make(shape));
      channels = expansion * shape.width;
    }
    net.add("layer" + std::to_string(stage + 1), std::move(layers));
  }
  return channels;
}

void add_classifier(Sequential& net, const std::string& pool, std::int64_t channels,
                    const ModelOptions& options) {
  net.add<GlobalPool>(pool, PoolKind::average).add<Linear>("fc", channels, options.classes);
  add_logit_scale(net, options);
}

/// Adds the stages and the classifier of a network of basic blocks.
void add_basic_blocks(Sequential& net, const std::array<int, 4>& blocks,
                      const ModelOptions& options) {
  const std::int64_t channels = add_stages(
      net, width_of(options), blocks, 1,
      [&](const BlockShape& shape) { return basic_block(shape, Shortcut::projection, options); });
  add_classifier(net, "avgpool", channels, options);
}

/// Adds what follows the stem's last convolution.
void add_norm_and_pool(Sequential& net, const ModelOptions& options) {
  add_pooled_norm(net, width_of(options),
                  {"bn1", "activation", "maxpool", /*kernel=*/3, /*stride=*/2, /*pad=*/1}, options);
}

/// Adds all layers behind the stem's last convolution, with bottlenecks.
void add_bottlenecks(Sequential& net, const std::array<int, 4>& blocks, Shortcut shortcut,
                     const ModelOptions& options) {
  add_norm_and_pool(net, options);
  const std::int64_t channels = add_stages(
      net, width_of(options), blocks, kExpansion,
      [&](const BlockShape& shape) { return bottleneck_block(shape, shortcut, options); });
  add_classifier(net, "avgpool", channels, options);
}

/// Returns the 7x7 convolution of the stem.
std::unique_ptr<Sequential> make_stem(const ModelOptions& options) {
  check_image(options, 32);
  auto net = std::make_unique<Sequential>();
  const FirstConv first = add_whitening(*net, options, conv_options(7, 2));
  net->add<Conv2d>("conv1", first.in, width_of(options), first.options);
  return net;
}

std::unique_ptr<Layer> make_bottlenecks(const ModelOptions& options,
                                        const std::array<int, 4>& blocks) {
  auto net = make_stem(options);
  add_bottlenecks(*net, blocks, Shortcut::projection, options);
  return net;
}

/// Makes a network for images of CIFAR: a stem, then three stages of `blocks` blocks with width, 2
/// width and 4 width channels; the depth is 6 blocks + 2.
std::unique_ptr<Layer> make_cifar_resnet(const ModelOptions& options, int blocks) {
  check_image(options, 4);
  const std::int64_t width = width_of(options, 16);
  auto net = std::make_unique<Sequential>();
  add_small_stem(*net, width, options);
  const std::int64_t channels = add_stages(
      *net, width, std::array{blocks, blocks, blocks}, 1,
      [&](const BlockShape& shape) { return basic_block(shape, Shortcut::pad, options); });
  add_classifier(*net, "pool", channels, options);
  return net;
}

}  // namespace

std::unique_ptr<Layer> make_resnet20(const ModelOptions& options) {
  return make_cifar_resnet(options, 3);
}

std::unique_ptr<Layer> make_resnet32(const ModelOptions& options) {
  return make_cifar_resnet(options, 5);
}

std::unique_ptr<Layer> make_resnet18(const ModelOptions& options) {
  check_image(options, 8);
  auto net = std::make_unique<Sequential>();
  add_small_stem(*net, width_of(options), options);
  add_basic_blocks(*net, {2, 2, 2, 2}, options);
  return net;
}

std::unique_ptr<Layer> make_resnet34(const ModelOptions& options) {
  auto net = make_stem(options);
  add_norm_and_pool(*net, options);
  add_basic_blocks(*net, {3, 4, 6, 3}, options);
  return net;
}

std::unique_ptr<Layer> make_resnet50(const ModelOptions& options) {
  return make_bottlenecks(options, {3, 4, 6, 3});
}

std::unique_ptr<Layer> make_resnet101(const ModelOptions& options) {
  return make_bottlenecks(options, {3, 4, 23, 3});
}

std::unique_ptr<Layer> make_resnet152(const ModelOptions& options) {
  return make_bottlenecks(options, {3, 8, 36, 3});
}

std::unique_ptr<Layer> make_resnet50d(const ModelOptions& options) {
  check_image(options, 32);
  const std::int64_t height = options.input[0], image_width = options.input[1];
  DKFAC_CHECK(height % 32 == 0 && image_width % 32 == 0, "[make_model] resnet50-d halves maps of ",
              "even sizes alone and takes images of a multiple of 32 pixels, not ", options.input,
              "; choose another size, or resnet50");
  const std::int64_t width = width_of(options), half = std::max<std::int64_t>(1, width / 2);
  const BatchNormOptions norm = norm_options(options, activation_of(options));
  auto net = std::make_unique<Sequential>();
  const FirstConv first = add_whitening(*net, options, conv_options(3, 2));
  auto stem = std::make_unique<Sequential>();
  stem->add<Conv2d>("0", first.in, half, first.options)
      .add<BatchNorm2d>("1", half, norm)
      .add<Conv2d>("2", half, half, conv_options(3))
      .add<BatchNorm2d>("3", half, norm)
      .add<Conv2d>("4", half, width, conv_options(3));
  net->add("conv1", std::move(stem));
  add_bottlenecks(*net, {3, 4, 6, 3}, Shortcut::pooled, options);
  return net;
}

}  // namespace dkfac::nn
