#include <algorithm>
#include <array>

#include "dkfac/core/error.h"

#include "nn/models/residual_blocks.h"

namespace dkfac::nn {
namespace {

constexpr std::int64_t kWidth = 64;

std::int64_t width_of(const ModelOptions& options) {
  return options.width > 0 ? options.width : kWidth;
}

/// Adds four stages; the first block of all but the first stage halves the map. make(shape) gives a
/// block of `expansion` * shape.width channels.
template <class MakeBlock>
void add_stages(Sequential& net, std::int64_t width, const std::array<int, 4>& blocks,
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
}

void add_classifier(Sequential& net, std::int64_t channels, const ModelOptions& options) {
  net.add<GlobalPool>("avgpool", PoolKind::average).add<Linear>("fc", channels, options.classes);
  add_logit_scale(net, options);
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
  add_stages(net, width_of(options), blocks, kExpansion,
             [&](const BlockShape& shape) { return bottleneck_block(shape, shortcut, options); });
  add_classifier(net, 8 * kExpansion * width_of(options), options);
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

}  // namespace

std::unique_ptr<Layer> make_resnet18(const ModelOptions& options) {
  check_image(options, 8);
  const std::int64_t width = width_of(options);
  auto net = std::make_unique<Sequential>();
  const FirstConv first = add_whitening(*net, options, conv_options(3));
  net->add<Conv2d>("conv1", first.in, width, first.options)
      .add<BatchNorm2d>("bn1", width, norm_options(options, activation_of(options)));
  add_stages(*net, width, {2, 2, 2, 2}, 1, [&](const BlockShape& shape) {
    return basic_block(shape, Shortcut::projection, options);
  });
  add_classifier(*net, 8 * width, options);
  return net;
}

std::unique_ptr<Layer> make_resnet34(const ModelOptions& options) {
  auto net = make_stem(options);
  add_norm_and_pool(*net, options);
  add_stages(*net, width_of(options), {3, 4, 6, 3}, 1, [&](const BlockShape& shape) {
    return basic_block(shape, Shortcut::projection, options);
  });
  add_classifier(*net, 8 * width_of(options), options);
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
